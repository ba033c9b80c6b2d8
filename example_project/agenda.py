"""Looking at what waits and what ran: ``delayq.count``, ``list``, ``stats`` and ``history``."""

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
    """How many reminders of a kind wait, in total and per part of the day, and the next of them."""

    kind: str
    parts: Sequence[int]
    total: int
    next_flight: str


def waiting() -> Waiting:
    """Ask the broker what waits, reminders and webhooks."""
    stats = delayq.stats()
    # RabbitMQ does not say what workers hold.
    return Waiting(stats.scheduled, stats.ready, stats.leased or 0, stats.dead)


def ready_ms() -> dict[str, int]:
    """Give when each task that ran had become ready, in ms since 1970 by Redis' clock, by id.

    Nothing on RabbitMQ, which has no history.
    """
    if is_on_rabbitmq():
        return {}
    return {run.id: as_ms(run.promoted) for run in delayq.history() if run.promoted is not None}


def agenda(clock: CompressedClock, hours: Sequence[int]) -> Iterator[Line]:
    """Count what waits between each two of `hours` after the day has begun, for each kind."""
    edges = [as_datetime(clock.real_ms(clock.begins + timedelta(hours=hour))) for hour in hours]
    for kind, task in TASKS.items():
        parts = [_count(task.name, *part) for part in pairwise(edges)]
        first = delayq.list(task=task.name, limit=1).entries
        flight = (first[0].kwargs or {}).get("flight", "?") if first else "-"
        yield Line(kind.value, parts, delayq.count(task=task.name), flight)


def _count(task: str, due_from: datetime, due_to: datetime) -> int:
    # Both ends are included: what is due at `due_to` is of the next part.
    before = due_to - timedelta(milliseconds=1)
    return delayq.count(task=task, due_from=due_from, due_to=before)
