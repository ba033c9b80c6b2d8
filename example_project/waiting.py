"""Read waiting and finished tasks: ``delayq.count``, ``list``, ``stats`` and ``history``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from example_project.app import delayq
from example_project.plan import CompressedClock, as_datetime, as_ms
from example_project.publish import TASKS
from example_project.records import Waiting
from example_project.settings import is_on_rabbitmq


@dataclass(frozen=True, slots=True)
class Line:
    """The waiting reminders of a kind, in total and per part of the day, and the next one."""

    kind: str
    parts: Sequence[int]
    total: int
    next_flight: str


def waiting() -> Waiting:
    """Count waiting reminders and webhooks in the broker."""
    stats = delayq.stats()
    # RabbitMQ does not count leased messages.
    return Waiting(stats.scheduled, stats.ready, stats.leased or 0, stats.dead)


def ready_ms() -> dict[str, int]:
    """Return by id when each finished task had become ready, in ms since 1970 by Redis' clock.

    Empty on RabbitMQ, which has no history.
    """
    if is_on_rabbitmq():
        return {}
    return {run.id: as_ms(run.promoted) for run in delayq.history() if run.promoted is not None}


def waiting_by_hours(clock: CompressedClock, hours: Sequence[int]) -> Iterator[Line]:
    """Count the reminders of each kind that are due between two `hours` after the day's begin."""
    edges = [as_datetime(clock.real_ms(clock.begins + timedelta(hours=hour))) for hour in hours]
    for kind, task in TASKS.items():
        parts = [_count(task.name, *part) for part in pairwise(edges)]
        first = delayq.list(task=task.name, limit=1).entries
        flight = (first[0].kwargs or {}).get("flight", "?") if first else "-"
        yield Line(kind.value, parts, delayq.count(task=task.name), flight)


def _count(task: str, due_from: datetime, due_to: datetime) -> int:
    # Both ends are included: a reminder due at `due_to` belongs to the next part.
    before = due_to - timedelta(milliseconds=1)
    return delayq.count(task=task, due_from=due_from, due_to=before)
