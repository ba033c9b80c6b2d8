"""All metrics with their names, labels and texts. Tests compare it with ``docs/metrics.md``.

No I/O.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from celery_delayq.model.totals import OUTCOMES, REASONS

Kind = Literal["gauge", "counter", "histogram"]

#: The states of entries; each entry is in one.
STATES = ("scheduled", "paused", "held", "ready", "leased", "dead")

#: The statuses of periodic entries; each entry has one.
STATUSES = ("on", "late", "paused", "ended", "unreadable")

#: The label of all tasks that have no label of their own.
OTHER_TASKS = "other"


class MetricInfo(NamedTuple):
    """A metric.

    Attributes
    ----------
    help : str
        One sentence.
    on_rabbitmq : bool
        Whether the metric exists on RabbitMQ, too.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    on_rabbitmq: bool = False


def _gauge(name: str, *labels: str, help: str, on_rabbitmq: bool = False) -> MetricInfo:
    return MetricInfo(f"delayq_{name}", "gauge", labels, help, on_rabbitmq)


def _total(name: str, help: str, *labels: str) -> MetricInfo:
    return MetricInfo(f"delayq_{name}_total", "counter", (*labels, "epoch"), help)


def _seconds(name: str, help: str) -> MetricInfo:
    return MetricInfo(f"delayq_{name}_seconds", "histogram", ("queue", "task"), help)


#: Counters of a queue by their names in :class:`~celery_delayq.model.totals.Totals`.
COUNTERS = {
    "accepted": "Messages that came into the queue.",
    "promoted": "Entries moved from scheduled to ready.",
    "acked": "Finished messages, without retried ones.",
    "retried": "Messages replaced by their retry, which is present in their place.",
    "redelivered": "Messages that are ready, or quarantined, again after a lease.",
    "cancelled": "Cancelled messages.",
    "replaced": "Messages replaced by another one with their unique key.",
    "moved": "Messages whose retry went to another queue.",
    "replayed": "Dead letters that are scheduled or ready again.",
    "purged": "Purged messages.",
    "taken": "Ready messages taken by others, such as stock workers.",
    "aside": "Dead letters whose message was not present: acknowledged before, or in no queue.",
}

METRICS: tuple[MetricInfo, ...] = (
    _gauge(
        "up",
        help="1 if the broker, and each master of a Redis Cluster, answered this scrape, else 0.",
        on_rabbitmq=True,
    ),
    _gauge(
        "last_success_timestamp_seconds",
        help="Last answered scrape, by the exporter's clock.",
        on_rabbitmq=True,
    ),
    _gauge(
        "scrape_duration_seconds",
        help="Duration of this scrape.",
        on_rabbitmq=True,
    ),
    _gauge(
        "build_info",
        "version",
        "broker",
        help="Always 1; the labels say the version and the kind of broker.",
        on_rabbitmq=True,
    ),
    _gauge(
        "entries",
        "queue",
        "state",
        help=f"Entries by state: {', '.join(STATES)}. Each is in one state.",
        on_rabbitmq=True,
    ),
    _gauge(
        "scheduled_entries",
        "queue",
        "task",
        help=f"Scheduled, paused and held entries by task; rare tasks are '{OTHER_TASKS}'.",
    ),
    _gauge(
        "ready_entries",
        "queue",
        "task",
        help=f"Ready messages by task; rare tasks are '{OTHER_TASKS}'. An estimate above 1000.",
    ),
    _gauge(
        "overdue_entries",
        "queue",
        help="Scheduled entries, not paused or held, whose due time has passed.",
    ),
    _gauge(
        "oldest_due_age_seconds",
        "queue",
        help="How long ago the longest waiting overdue or ready task was due; 0 if paused or none.",
    ),
    _gauge(
        "next_due_timestamp_seconds",
        "queue",
        help="When the first entry is due; absent if nothing is scheduled.",
    ),
    _gauge(
        "held_entries",
        "queue",
        "waits_for",
        help="Held entries that more workers could run now ('worker'), or that their limit does "
        "not allow now ('limit'). An estimate above 500 lanes.",
    ),
    _gauge("limit_held", "limit", help="Held entries of a limit."),
    _gauge("limit_used", "limit", help="Leased messages of a limit."),
    _gauge(
        "limit_allowed",
        "limit",
        help="Most leased messages of one lane; absent without a concurrency.",
    ),
    _gauge("queue_paused", "queue", help="1 if the queue is paused, else 0."),
    _gauge(
        "leasing_processes",
        "queue",
        help="Processes with leased messages of the queue.",
    ),
    _gauge(
        "schedule_memory_bytes",
        "queue",
        help="Memory of the schedule, by samples; absent if Redis refuses MEMORY USAGE.",
    ),
    _gauge(
        "redis_memory_used_bytes",
        help="Memory that Redis uses; absent if Redis refuses INFO.",
    ),
    _gauge(
        "redis_memory_max_bytes",
        help="Limit of Redis' memory, 0: none; absent if Redis refuses INFO.",
    ),
    _gauge(
        "last_dispatch_timestamp_seconds",
        help="Last work of a dispatcher, by Redis' clock; at most 5 s old while one works.",
    ),
    _gauge(
        "clock_skew_seconds",
        help="Exporter's clock minus Redis' clock.",
    ),
    _gauge(
        "periodic_entries",
        "status",
        help="Periodic entries: on, late (no dispatcher fired its tick for 10 s), paused, ended, "
        "unreadable.",
    ),
    *(_total(name, text, "queue") for name, text in COUNTERS.items()),
    _total(
        "dead_lettered",
        f"Dead letters by reason: {', '.join(REASONS)}.",
        "queue",
        "reason",
    ),
    _total("ticks", f"Ticks of periodic entries: {', '.join(OUTCOMES)}.", "outcome"),
    _seconds("promotion_delay", "From due to ready, by Redis' clock."),
    _seconds("lateness", "From due to the start of the run, by Redis' and the worker's clock."),
    _seconds("run", "Duration of runs, by the worker's clock."),
)

BY_NAME = {each.name: each for each in METRICS}
