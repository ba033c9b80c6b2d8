"""Compare published tasks with their runs. Policy only; `records` keeps both in Redis."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, NamedTuple

from celery_delayq import Outcome

Action = Literal["move", "cancel"]


class Part(str, Enum):
    """A part of a task's lateness; the value says from when to when."""

    DISPATCH = "due to ready: the dispatcher"
    WAIT = "ready to start: a free thread"
    ALL = "due to start"


@dataclass(frozen=True, slots=True)
class Published:
    """A published task: due at `eta_ms`; `published_ms` is when Redis had it.

    All times are milliseconds since 1970 by Redis' clock.
    """

    task_id: str
    kind: str
    eta_ms: int
    published_ms: float


@dataclass(frozen=True, slots=True)
class Change:
    """A request to move a task to `eta_ms`, or to cancel it; `made_ms` is the time of the answer.

    `outcome` is the answer of `celery_delayq`: the value of an `Outcome`.
    """

    task_id: str
    action: Action
    outcome: str
    eta_ms: int | None
    made_ms: float

    @property
    def done(self) -> bool:
        """Whether the change was made; else it came too late."""
        return self.outcome == Outcome.DONE


@dataclass(frozen=True, slots=True)
class Run:
    """One start of a task at `started_ms`; `eta_ms` is the ETA in the task's request."""

    task_id: str
    eta_ms: int | None
    started_ms: float


@dataclass(frozen=True, slots=True)
class Books:
    """All records, and by task id when each task that ran had become ready.

    `set_aside` are the ids of tasks that came although they had been moved or cancelled. `None` if
    the broker itself makes the changes.
    """

    published: Sequence[Published]
    changes: Sequence[Change]
    runs: Sequence[Run]
    ready_ms: Mapping[str, int] = field(default_factory=dict)
    set_aside: Sequence[str] | None = None

    def expected_eta_ms(self) -> dict[str, int]:
        """Return the ETA that each task should have, by id: its first, if it was sent once."""
        if self.set_aside is not None:
            return self.due_ms()
        return {task.task_id: task.eta_ms for task in self.published}

    def due_ms(self) -> dict[str, int]:
        """Return when each task was finally due, by task id; a moved one at its new time."""
        due = {task.task_id: task.eta_ms for task in self.published}
        for change in self.changes:
            if change.done and change.eta_ms is not None:
                due[change.task_id] = change.eta_ms
        return due

    def done(self, action: Action) -> set[str]:
        """Return the ids of the tasks that were moved, or cancelled, in time."""
        return {
            change.task_id for change in self.changes if change.action == action and change.done
        }

    def starts(self) -> dict[str, list[float]]:
        """Return when each task that ran has started, by task id."""
        starts: dict[str, list[float]] = defaultdict(list)
        for run in self.runs:
            starts[run.task_id].append(run.started_ms)
        return dict(starts)


class Spread(NamedTuple):
    """The distribution of `number` values in milliseconds; `None` if there are none."""

    number: int
    p50: float | None
    p99: float | None
    longest: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Compute the distribution of some values."""
        p50, p99 = percentile(values, 50), percentile(values, 99)
        return cls(len(values), p50, p99, max(values, default=None))


@dataclass(frozen=True, slots=True)
class Tally:
    """The sums of one kind of task. ``planned == run + cancelled + lost``.

    `moved` and `cancelled` count changes in time. `twice` counts tasks that started more than once.
    `early` counts tasks with a start before their due, so a moved task that ran at its old time is
    early.
    """

    planned: int
    moved: int
    cancelled: int
    run: int
    early: int
    lost: int
    twice: int


@dataclass(frozen=True, slots=True)
class Sums:
    """The whole ledger: a tally per kind and in total, and other counts.

    `outcomes`: the outcomes of the changes, for each action. `ran_cancelled`: ran although they
    were cancelled. `missed`: a change was answered with "has run", but they had not. `overdue`:
    already due when Redis had them. `unknown`: ran and were never published. `other_eta`: started
    with another ETA than the published one, or none. `astray`: set aside without a change, or
    changed and not set aside once, if tasks set themselves aside. `lateness`: how late the first
    starts were, by part.
    """

    per_kind: dict[str, Tally]
    total: Tally
    outcomes: dict[Action, Counter[str]]
    ran_cancelled: int
    missed: int
    overdue: int
    unknown: int
    other_eta: int
    astray: int
    lateness: dict[Part, Spread]


def add_up(books: Books) -> Sums:
    """Compare every published task with its changes and its starts."""
    starts = books.starts()
    kinds: dict[str, list[Published]] = defaultdict(list)
    for task in books.published:
        kinds[task.kind].append(task)
    etas = books.expected_eta_ms()
    outcomes: dict[Action, Counter[str]] = {"move": Counter(), "cancel": Counter()}
    for change in books.changes:
        outcomes[change.action][change.outcome] += 1
    return Sums(
        per_kind={kind: _tally(tasks, books) for kind, tasks in kinds.items()},
        total=_tally(books.published, books),
        outcomes=outcomes,
        ran_cancelled=len(books.done("cancel") & starts.keys()),
        missed=sum(
            change.outcome == Outcome.UNKNOWN
            and min(starts.get(change.task_id, [math.inf])) > change.made_ms
            for change in books.changes
        ),
        overdue=sum(task.eta_ms <= task.published_ms for task in books.published),
        unknown=len(starts.keys() - etas.keys()),
        other_eta=len(
            {run.task_id for run in books.runs if etas.get(run.task_id, run.eta_ms) != run.eta_ms}
        ),
        astray=_astray(books),
        lateness={part: Spread.of([*late.values()]) for part, late in lateness(books).items()},
    )


def problems(
    sums: Sums,
    expected: Mapping[str, int],
    *,
    changes: Mapping[str, int],
    added: int = 0,
    left_in_broker: int = 0,
) -> list[str]:
    """Return a sentence for each error in `sums`; an empty list means no error.

    `expected` is the planned number of tasks of each kind, `changes` the number of changes of each
    action in the news, `added` how many more tasks there were after the second publish,
    `left_in_broker` the number of messages that the broker has after the end of the workers.
    """
    found: list[str] = []
    for kind in sorted({*expected, *sums.per_kind}):
        wanted = expected.get(kind, 0)
        tally = sums.per_kind.get(kind)
        planned = tally.planned if tally else 0
        if planned != wanted:
            found.append(f"{kind}: {wanted} tasks were planned, {planned} were scheduled")
    for action, outcomes in sums.outcomes.items():
        wanted = changes.get(action, 0)
        if outcomes.total() != wanted:
            found.append(f"{action}: {wanted} were asked for, {outcomes.total()} were tried")
    for count, what in (
        (added, "were added by publishing all of them again"),
        (sums.total.lost, "were not cancelled and never ran"),
        (sums.total.early, "ran before they were due"),
        (sums.total.twice, "ran more than once"),
        (sums.ran_cancelled, "ran although they had been cancelled"),
        (sums.missed, "were not found when they were to be changed, and had not run"),
        (
            sums.overdue,
            "were due when they were published: this machine needs more --seconds-before",
        ),
        (sums.unknown, "ran without having been published"),
        (sums.other_eta, "started with another ETA than they were published with"),
        (sums.astray, "were moved or cancelled and not set aside once, or the other way round"),
        (left_in_broker, "were still in the broker after the workers had ended"),
    ):
        if count:
            found.append(f"{count} tasks {what}")
    return found


def lateness(books: Books) -> dict[Part, dict[str, float]]:
    """Return the parts of the lateness of each task's first start in milliseconds, by task id."""
    due, ready = books.due_ms(), books.ready_ms
    started = {id: min(times) for id, times in books.starts().items() if id in due}
    return {
        Part.DISPATCH: {id: ready[id] - due[id] for id in started if id in ready},
        Part.WAIT: {id: start - ready[id] for id, start in started.items() if id in ready},
        Part.ALL: {id: start - due[id] for id, start in started.items()},
    }


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Return the smallest value that `percent` of the values do not exceed (nearest rank)."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(percent / 100 * len(values)) - 1)]


def _astray(books: Books) -> int:
    if books.set_aside is None:
        return 0
    aside, changed = Counter(books.set_aside), Counter(books.done("move") | books.done("cancel"))
    return (aside - changed).total() + (changed - aside).total()


def _tally(tasks: Iterable[Published], books: Books) -> Tally:
    ids = {task.task_id for task in tasks}
    starts = {task_id: times for task_id, times in books.starts().items() if task_id in ids}
    cancelled, due = books.done("cancel") & ids, books.due_ms()
    return Tally(
        planned=len(ids),
        moved=len(books.done("move") & ids),
        cancelled=len(cancelled),
        run=len(starts),
        early=sum(min(times) < due[task_id] for task_id, times in starts.items()),
        lost=len(ids - cancelled - starts.keys()),
        twice=sum(len(times) > 1 for times in starts.values()),
    )
