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
    "acked": "Messages that are finished, without those that their retry has replaced.",
    "retried": "Messages that their retry has replaced.",
    "redelivered": "Messages that are ready again after a lease.",
    "cancelled": "Messages that were cancelled.",
    "replaced": "Messages that another one with their unique key has replaced.",
    "moved": "Messages whose retry went to another queue.",
    "replayed": "Dead letters that are scheduled or ready again.",
    "purged": "Messages that were purged.",
    "taken": "Ready messages that were taken by others, such as stock workers.",
    "aside": "Dead letters that were not present: acknowledged before, or of no queue.",
}

METRICS: tuple[MetricInfo, ...] = (
    _gauge(
        "up",
        help="1 if the broker answered this scrape, else 0; then most metrics are left out. While "
        "a master of a Redis Cluster is away it is 0 too, and only its queues are left out.",
        on_rabbitmq=True,
    ),
    _gauge(
        "last_success_timestamp_seconds",
        help="When the broker answered a scrape last, by the exporter's clock.",
        on_rabbitmq=True,
    ),
    _gauge(
        "scrape_duration_seconds",
        help="How long the broker was asked for this scrape.",
        on_rabbitmq=True,
    ),
    _gauge(
        "build_info",
        "version",
        "broker",
        help="Always 1; the labels have the version of celery_delayq and the kind of broker.",
        on_rabbitmq=True,
    ),
    _gauge(
        "entries",
        "queue",
        "state",
        help=f"Entries by state: {', '.join(STATES)}; each is in one of them; leased "
        "ones are counted a moment after the others.",
        on_rabbitmq=True,
    ),
    _gauge(
        "scheduled_entries",
        "queue",
        "task",
        help="Scheduled, paused and held entries of the largest tasks; the others are "
        f"'{OTHER_TASKS}'.",
    ),
    _gauge(
        "ready_entries",
        "queue",
        "task",
        help=f"Ready messages of the largest tasks; the others are '{OTHER_TASKS}'. An estimate by "
        "sample where a queue has more than 1000 of one priority.",
    ),
    _gauge(
        "overdue_entries",
        "queue",
        help="Scheduled entries whose due time has passed, without paused and held ones.",
    ),
    _gauge(
        "oldest_due_age_seconds",
        "queue",
        help="How long ago the longest waiting task was due: the first overdue entry, or a "
        "message to be taken next; 0 where none waits or the queue is paused.",
    ),
    _gauge(
        "next_due_timestamp_seconds",
        "queue",
        help="When the first entry is due, by Redis' clock; absent where nothing is scheduled.",
    ),
    _gauge(
        "held_entries",
        "queue",
        "waits_for",
        help="Held entries that more workers could run now ('worker'), and those that their limit "
        "does not allow now ('limit'); absent without limits. An estimate by sample where more "
        "than 500 lanes may go.",
    ),
    _gauge("limit_held", "limit", help="Held entries of all lanes of a limit."),
    _gauge("limit_used", "limit", help="Messages of all lanes of a limit that workers have."),
    _gauge(
        "limit_allowed",
        "limit",
        help="Most messages of one lane that workers may have; absent without a concurrency.",
    ),
    _gauge("queue_paused", "queue", help="1 if the queue is paused, else 0."),
    _gauge(
        "leasing_processes",
        "queue",
        help="Processes that have messages of the queue and extend their leases.",
    ),
    _gauge(
        "schedule_memory_bytes",
        "queue",
        help="Memory of the schedule, by samples (MEMORY USAGE); absent where Redis refuses it.",
    ),
    _gauge(
        "redis_memory_used_bytes",
        help="Memory that Redis uses; absent where Redis refuses INFO.",
    ),
    _gauge(
        "redis_memory_max_bytes",
        help="The limit of Redis' memory, 0 for none; absent where Redis refuses INFO.",
    ),
    _gauge(
        "last_dispatch_timestamp_seconds",
        help="When a dispatcher last moved something or found nothing to move, by Redis' clock; "
        "at most 5 s old while one works.",
    ),
    _gauge(
        "clock_skew_seconds",
        help="By how much the exporter's clock is ahead of Redis' clock.",
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
        f"Messages that became dead letters: {', '.join(REASONS)}.",
        "queue",
        "reason",
    ),
    _total("ticks", f"Ticks of periodic entries: {', '.join(OUTCOMES)}.", "outcome"),
    _seconds("promotion_delay", "From due to ready, by Redis' clock."),
    _seconds("lateness", "From due to the start of the run, by Redis' and the worker's clock."),
    _seconds("run", "Duration of runs, by the worker's clock."),
)

BY_NAME = {each.name: each for each in METRICS}
