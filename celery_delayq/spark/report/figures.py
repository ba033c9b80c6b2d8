"""The figures of a report: sums and quantiles as plain data. No Spark, no I/O."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pyarrow as pa

from celery_delayq.charts.scales import STEP_SECONDS, Quantiles

_TYPES: Mapping[Any, pa.DataType] = {
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    datetime: pa.timestamp("us", "UTC"),
}


#: Tables with a row of figures for each key: the column of the key, and its type.
_KEYED_TABLES = {"tasks": ("task", str), "queues": ("queue", str), "hours": ("hour", datetime)}


@dataclass(frozen=True)
class Figures:
    """The figures of some runs.

    Attributes
    ----------
    runs : int
        All runs; each attempt is one.
    succeeded, failed, retried, rejected, revoked, ignored : int
        Runs by their end. A *retried* run failed and its task is tried again.
    redelivered : int
        Runs whose message had been delivered before.
    immediate : int
        Runs without a due time.
    advanced : int
        Runs that began before their ETA because of ``run_now`` or ``reschedule``. They have no
        lateness.
    failure_rate : float
        *failed* / *runs*, 0 to 1.
    per_minute, peak_minute : float, int
        Ended runs per minute on average, and in the busiest minute.
    promotion : Quantiles
        From due to ready, by Redis' clock.
    wait : Quantiles
        From ready to the start.
    lateness : Quantiles
        From due to the start.
    runtime : Quantiles
        From the start to the end.
    """

    runs: int = 0
    succeeded: int = 0
    failed: int = 0
    retried: int = 0
    rejected: int = 0
    revoked: int = 0
    ignored: int = 0
    redelivered: int = 0
    immediate: int = 0
    advanced: int = 0
    failure_rate: float = 0.0
    per_minute: float = 0.0
    peak_minute: int = 0
    promotion: Quantiles = Quantiles()
    wait: Quantiles = Quantiles()
    lateness: Quantiles = Quantiles()
    runtime: Quantiles = Quantiles()

    def stages(self) -> Sequence[tuple[str, Quantiles]]:
        """Return the stages of runs, by name."""
        return (
            ("due to ready", self.promotion),
            ("ready to start", self.wait),
            ("due to start (lateness)", self.lateness),
            ("start to end (run time)", self.runtime),
        )


@dataclass(frozen=True)
class Step:
    """Planned and started runs in one step of time.

    Attributes
    ----------
    at : datetime
        Begin of the step.
    planned, started : int
        Runs that were due in the step, and runs that began in the step. Only runs with both times
        count, so both sums over all steps are equal.
    difference : int
        *started* less *planned*.
    behind : int
        Runs that were due by the end of the step and had not begun.
    ended, failed, retried : int
        Runs that ended in the step: all, failed ones and retried ones.
    lateness : Quantiles
        Lateness of the runs that were due in the step.
    """

    at: datetime
    planned: int = 0
    started: int = 0
    difference: int = 0
    behind: int = 0
    ended: int = 0
    failed: int = 0
    retried: int = 0
    lateness: Quantiles = Quantiles()


@dataclass(frozen=True)
class AttemptCount:
    """Number of ids of a task that had this number of runs."""

    task: str
    attempts: int
    ids: int


@dataclass(frozen=True)
class Reason:
    """A reason why runs of a task did not succeed, the number of runs, and the end of the last."""

    task: str
    state: str
    reason: str
    runs: int
    last: datetime


@dataclass(frozen=True)
class Load:
    """Scheduled tasks of one queue, task and step.

    Attributes
    ----------
    queue, task : str
        The task; ``""`` for unreadable entries.
    when : str
        ``due`` in the step that begins *at*, ``overdue``, ``later``, or ``held``: its name is
        paused, or it waits for its limit.
    at : datetime | None
        Begin of the step, None unless ``due``.
    entries : int
        Number of the tasks.
    """

    queue: str
    task: str
    when: str
    at: datetime | None
    entries: int


@dataclass(frozen=True)
class LoadAhead:
    """The load to come: the scheduled tasks at one time.

    Attributes
    ----------
    now : datetime
        The time of the count, by Redis' clock.
    begins, ends, step : datetime, datetime, int
        Begin of the first step, end of the last step, and the seconds of a step.
    loads : Sequence[Load]
        The loads, without steps that have no due tasks.
    """

    now: datetime
    begins: datetime
    ends: datetime
    step: int
    loads: Sequence[Load] = ()

    def sums(self, of: Callable[[Load], Any]) -> Counter[Any]:
        """Return the number of entries, grouped by *of*."""
        found: Counter[Any] = Counter()
        for load in self.loads:
            found[of(load)] += load.entries
        return found


@dataclass(frozen=True)
class RunReport:
    """The result of a report.

    Attributes
    ----------
    source : str
        ``"history"``, or the folder of the archive.
    filters : Mapping[str, str]
        The given filters of ``since``, ``until``, ``task`` and ``queue``.
    first, last : datetime | None
        Begin of the first run and end of the last one.
    unreadable : int
        Unreadable lines of the history.
    total, tasks, queues, hours : Figures
        Figures of all runs, by task, by queue, and by the hour (UTC) of the end of a run.
    attempts : Sequence[AttemptCount]
        Number of runs per id, within the time of the report.
    reasons : Sequence[Reason]
        The most frequent reasons.
    step : int
        Seconds of a step of the timeline.
    timeline : Sequence[Step]
        Planned and started runs, without gaps. The first step includes all earlier due times.
    ahead : LoadAhead | None
        The load to come, None if it was not requested.
    """

    source: str
    filters: Mapping[str, str] = field(default_factory=dict)
    first: datetime | None = None
    last: datetime | None = None
    unreadable: int = 0
    total: Figures = Figures()
    tasks: Mapping[str, Figures] = field(default_factory=dict)
    queues: Mapping[str, Figures] = field(default_factory=dict)
    hours: Mapping[datetime, Figures] = field(default_factory=dict)
    attempts: Sequence[AttemptCount] = ()
    reasons: Sequence[Reason] = ()
    step: int = 1
    timeline: Sequence[Step] = ()
    ahead: LoadAhead | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON types; times in ISO 8601, durations in ms."""
        lists = {name: rows for name, rows, _ in self._table_rows() if name in _KEYED_TABLES}
        values = {"notes": [*self.notes()], **asdict(self), **lists}
        plain: dict[str, Any] = json.loads(json.dumps(values, default=_iso))
        return plain

    def tables(self) -> Iterator[tuple[str, pa.Table]]:
        """Yield names and Arrow tables."""
        for name, rows, kinds in self._table_rows():
            schema = pa.schema([(column, _arrow(kind)) for column, kind in kinds.items()])
            yield name, pa.Table.from_pylist(rows, schema)

    def notes(self) -> Iterator[str]:
        """Yield notes on the figures for readers."""
        total = self.total
        if not total.runs:
            yield from self._empty()
        early = max(total.lateness.early, total.wait.early)
        if early:
            yield (
                f"{early:,} run(s) began before they were due or ready: a worker's clock is "
                "behind that of Redis. Lateness is only as exact as the clocks."
            )
        if total.advanced:
            yield (
                f"{total.advanced:,} run(s) were brought forward by run_now or reschedule; they "
                "are left out of lateness and plan."
            )
        if self.unreadable:
            yield f"{self.unreadable:,} line(s) of the history cannot be read."

    def _empty(self) -> Iterator[str]:
        if self.filters:
            yield "No run matches " + ", ".join(f"{k}={v}" for k, v in self.filters.items())
        elif self.source != "history":
            yield "The archive has no runs."
        else:
            yield (
                "The history is empty: no run has ended since it was switched on, or it is off. "
                'broker_transport_options={"delayq": {"history": 100_000}} of the workers\' app '
                "switches it on."
            )

    def _table_rows(self) -> Iterator[tuple[str, list[dict[str, Any]], dict[str, Any]]]:
        """Yield the tables: name, rows, and types of columns."""
        figures = get_type_hints(Figures)
        yield "total", [asdict(self.total)], figures
        for name, (key, kind) in _KEYED_TABLES.items():
            rows = [{key: value, **asdict(each)} for value, each in getattr(self, name).items()]
            yield name, rows, {key: kind, **figures}
        loads = () if self.ahead is None else self.ahead.loads
        several: Sequence[tuple[str, Any, Sequence[Any]]] = (
            ("attempts", AttemptCount, self.attempts),
            ("reasons", Reason, self.reasons),
            ("timeline", Step, self.timeline),
            ("loads", Load, loads),
        )
        for name, kind, values in several:
            yield name, [asdict(each) for each in values], get_type_hints(kind)


def step_for(seconds: float, most: int) -> int:
    """Return the shortest of :data:`STEP_SECONDS` with at most about *most* steps in *seconds*."""
    return next((step for step in STEP_SECONDS if step * most >= seconds), STEP_SECONDS[-1])


def _iso(at: datetime) -> str:
    return at.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")


def _arrow(kind: Any) -> pa.DataType:
    if get_origin(kind) in (Union, UnionType):
        kind = next(each for each in get_args(kind) if each is not type(None))
    if kind is Quantiles:
        return pa.struct([(n, _arrow(each)) for n, each in get_type_hints(Quantiles).items()])
    return _TYPES[kind]
