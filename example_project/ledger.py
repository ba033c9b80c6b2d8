"""The sums: what was published against what ran. Policy only; `records` keeps both in Redis."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

TOTAL = "total"


@dataclass(frozen=True, slots=True)
class Published:
    """A task as it was published: due at `eta_ms`; `published_ms` is when Redis had it.

    All times are milliseconds since 1970 by the clock of Redis.
    """

    task_id: str
    kind: str
    eta_ms: int
    published_ms: float


@dataclass(frozen=True, slots=True)
class Run:
    """One start of a task at `started_ms`; `eta_ms` is the ETA that the task itself was told."""

    task_id: str
    eta_ms: int | None
    started_ms: float


@dataclass(frozen=True, slots=True)
class Tally:
    """The sums of one kind of task. ``scheduled == run + lost``; lateness is in milliseconds.

    `twice` counts tasks that started more than once, `early` those that started before their
    ETA at least once. Lateness is that of each task's first start, `None` when nothing ran.
    """

    scheduled: int
    run: int
    early: int
    lost: int
    twice: int
    p50_ms: float | None
    p99_ms: float | None
    max_ms: float | None


@dataclass(frozen=True, slots=True)
class Sums:
    """The whole ledger: a tally per kind and in total, and what has no place in a tally.

    `overdue`: already due when Redis had them. `unknown`: ran and were never published.
    `other_eta`: started with another ETA, or none, than they were published with.
    """

    per_kind: dict[str, Tally]
    total: Tally
    overdue: int
    unknown: int
    other_eta: int


def add_up(published: Sequence[Published], runs: Iterable[Run]) -> Sums:
    """Compare every published task with its starts."""
    starts: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        starts[run.task_id].append(run)
    kinds: dict[str, list[Published]] = defaultdict(list)
    for task in published:
        kinds[task.kind].append(task)
    etas = {task.task_id: task.eta_ms for task in published}
    return Sums(
        per_kind={kind: _tally(tasks, starts) for kind, tasks in kinds.items()},
        total=_tally(published, starts),
        overdue=sum(task.eta_ms <= task.published_ms for task in published),
        unknown=sum(task_id not in etas for task_id in starts),
        other_eta=sum(
            any(run.eta_ms != etas[task_id] for run in started)
            for task_id, started in starts.items()
            if task_id in etas
        ),
    )


def problems(sums: Sums, expected: Mapping[str, int], left_in_broker: int = 0) -> list[str]:
    """Say what is wrong with `sums`, one sentence each; an empty list means that all is right.

    `expected` is the number of tasks of each kind that the plan asked for, `left_in_broker` how
    many messages Redis still holds after the workers have ended.
    """
    found: list[str] = []
    for kind in sorted({*expected, *sums.per_kind}):
        wanted = expected.get(kind, 0)
        tally = sums.per_kind.get(kind)
        scheduled = tally.scheduled if tally else 0
        if scheduled != wanted:
            found.append(f"{kind}: {wanted} tasks were planned, {scheduled} were scheduled")
    for count, what in (
        (sums.total.lost, "never ran"),
        (sums.total.early, "ran before their ETA"),
        (sums.total.twice, "ran more than once"),
        (sums.overdue, "were already due when they were published"),
        (sums.unknown, "ran without having been published"),
        (sums.other_eta, "were told another ETA than they were published with"),
        (left_in_broker, "were still in Redis after the workers had ended"),
    ):
        if count:
            found.append(f"{count} tasks {what}")
    return found


def lateness(published: Iterable[Published], runs: Iterable[Run]) -> dict[str, float]:
    """Give the lateness of each task's first start in milliseconds, by task id."""
    etas = {task.task_id: task.eta_ms for task in published}
    late: dict[str, float] = {}
    for run in runs:
        if run.task_id in etas:
            this = run.started_ms - etas[run.task_id]
            late[run.task_id] = min(this, late.get(run.task_id, this))
    return late


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Give the smallest of the values that `percent` of them do not exceed (nearest rank)."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(percent / 100 * len(values)) - 1)]


def _tally(tasks: Sequence[Published], starts: Mapping[str, Sequence[Run]]) -> Tally:
    started = [(task, starts[task.task_id]) for task in tasks if task.task_id in starts]
    late = [min(run.started_ms for run in runs) - task.eta_ms for task, runs in started]
    return Tally(
        scheduled=len(tasks),
        run=len(started),
        early=sum(value < 0 for value in late),
        lost=len(tasks) - len(started),
        twice=sum(len(runs) > 1 for _, runs in started),
        p50_ms=percentile(late, 50),
        p99_ms=percentile(late, 99),
        max_ms=max(late, default=None),
    )
