"""Periodic entries, readable and unreadable, their states, and their records in Redis.

A record is ``<line>\\n<definition in JSON>``. The line is the state. Scripts compare and replace
the line:
``1 <definition_hash>[+<manual runs>[+<manual id>]] <anchor> <next tick> <last tick> <ticks>
<status>``. Times are in ms since 1970.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, ClassVar, Literal

from celery_delayq.errors import PeriodicUnknown, RecordError
from celery_delayq.periodic.definition import API_SOURCE, Definition
from celery_delayq.periodic.serialization import describe
from celery_delayq.periodic.wall_clock import MAX_TICK_MS, datetime_of_ms
from celery_delayq.utils import foreign

#: "paused": not fired until the entry is resumed. "ended": never fired again.
Status = Literal["on", "paused", "ended"]

#: Dispatchers look at entries whose ticks are scheduled ahead at multiples of this many ms.
LOOK_STEP_MS = 200

_VERSION = "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodicState:
    """The state of an entry.

    Attributes
    ----------
    definition_hash : str
        Hash of the definition.
    anchor : int
        Start of the intervals (ms).
    next_tick, last_tick : int | None
        The next tick that is not scheduled yet, and the last scheduled tick (ms).
    count : int
        Number of scheduled ticks.
    manual_runs : int
        Number of manual runs (``run_now``), which are not ticks.
    manual_id : str
        The part after ``<name>:`` of the task id of the last manual run.
    """

    definition_hash: str
    anchor: int
    next_tick: int | None = None
    last_tick: int | None = None
    count: int = 0
    manual_runs: int = 0
    manual_id: str = ""
    status: Status = "on"

    def has_same_origin(self, other: PeriodicState) -> bool:
        """Return whether both states are of one entry, and no call has changed its definition."""
        return (self.definition_hash, self.anchor) == (other.definition_hash, other.anchor)

    @property
    def line(self) -> str:
        """The state as the first line of a record."""
        runs = f"+{self.manual_runs}" if self.manual_runs else ""
        manual_id = f"+{self.manual_id}" if self.manual_id else ""
        tick, last_tick = ("-" if ms is None else ms for ms in (self.next_tick, self.last_tick))
        return (
            f"{_VERSION} {self.definition_hash}{runs}{manual_id} {self.anchor} {tick} {last_tick} "
            f"{self.count} {self.status}"
        )

    @classmethod
    def read(cls, line: str) -> PeriodicState:
        """Undo :attr:`line`.

        Raises
        ------
        RecordError
            *line* is not in this format.
        """
        try:
            version, definition_hash, anchor, next_tick, last_tick, count, status = line.split(" ")
            if version != _VERSION or status not in ("on", "paused", "ended"):
                raise ValueError("another version")
            definition_hash, runs, manual_id = (*definition_hash.split("+"), "", "")[:3]
            return cls(
                definition_hash=definition_hash,
                anchor=_ms(anchor),
                next_tick=None if next_tick == "-" else _ms(next_tick),
                last_tick=None if last_tick == "-" else _ms(last_tick),
                count=int(count),
                manual_runs=int(runs or 0),
                manual_id=manual_id,
                status=status,  # type: ignore[arg-type]
            )
        except ValueError as exc:
            raise RecordError(f"unreadable line {line!r} of a periodic entry: {exc}") from exc


@dataclass(frozen=True, slots=True)
class Periodic:
    """A periodic entry.

    Attributes
    ----------
    definition : Definition
        Task, schedule, arguments and options, as ``docs/periodic.md`` lists them.
    """

    definition: Definition
    state: PeriodicState

    @property
    def name(self) -> str:
        """The name of the entry."""
        return self.definition.name

    @property
    def next(self) -> datetime | None:
        """The next tick that is not scheduled yet."""
        return _moment(self.state.next_tick)

    @property
    def last_run_at(self) -> datetime | None:
        """The last scheduled tick, which may be up to two seconds in the future."""
        return _moment(self.state.last_tick)

    @property
    def total_run_count(self) -> int:
        """Number of scheduled ticks and manual runs. ``max_runs`` counts ticks only."""
        return self.state.count + self.state.manual_runs

    @property
    def status(self) -> Status:
        """``"on"``, ``"paused"`` or ``"ended"``."""
        return self.state.status

    @property
    def next_look_ms(self) -> int | None:
        """Time at which dispatchers look at the entry next (ms); None for never."""
        tick, ahead = self.state.next_tick, self.definition.ahead
        if tick is None or not ahead:
            return tick
        return -((ahead - tick) // LOOK_STEP_MS) * LOOK_STEP_MS

    def as_dict(self) -> dict[str, Any]:
        """Return the entry as a dictionary for JSON."""
        data = foreign.loads(self.definition.dumps())
        return {
            "name": self.name,
            "source": self.definition.source,
            "when": describe(self.definition.schedule),
            **data,
            "status": self.status,
            **times_and_counts(self.state),
        }

    def pack(self) -> str:
        """Return the record of the entry."""
        return f"{self.state.line}\n{self.definition.dumps()}"

    @classmethod
    def unpack(cls, name: str, record: str) -> Periodic:
        """Undo :meth:`pack`.

        Raises the errors of :meth:`Definition.loads` and :meth:`PeriodicState.read`.
        """
        line, _, text = record.partition("\n")
        return cls(Definition.loads(name, text), PeriodicState.read(line))


@dataclass(frozen=True, slots=True)
class UnreadableEntry:
    """A periodic entry that this process cannot read.

    The class of its schedule is not registered, or its record has another version.

    Attributes
    ----------
    name : str
    record : str
        The stored record.
    error : Exception
        The error of reading the record.
    """

    name: str
    record: str
    error: Exception = field(compare=False)
    #: Never: dispatchers do not look at a paused entry.
    next_look_ms: ClassVar[None] = None
    #: Always "unreadable". *state* says whether the entry is paused or has ended.
    status: ClassVar[Literal["unreadable"]] = "unreadable"

    @property
    def source(self) -> str | None:
        """The source of the entry; None if it is unreadable too."""
        return source_in(self.record)

    @property
    def data(self) -> Mapping[str, Any]:
        """The definition as JSON; empty if it is unreadable too."""
        return {} if self.source is None else foreign.loads(self.record.partition("\n")[2])

    @property
    def state(self) -> PeriodicState | None:
        """The state of the entry; None if it is unreadable too."""
        with suppress(RecordError):
            return PeriodicState.read(self.record.partition("\n")[0])
        return None

    @property
    def problem(self) -> str:
        """The text of the error."""
        return str(self.error)

    @property
    def paused(self) -> bool:
        """Whether the entry is paused."""
        return self.state is not None and self.state.status == "paused"

    def as_dict(self) -> dict[str, Any]:
        """Return the entry as a dictionary for JSON. Another process can import it without loss."""
        return {"name": self.name, **self.data} | {
            "name": self.name,
            "source": self.source,
            "when": None,
            "status": self.status,
            "problem": self.problem,
            "paused": self.paused,
            **times_and_counts(self.state),
        }

    def pack(self) -> str:
        """Return the record of the entry."""
        return self.record

    def as_paused(self) -> UnreadableEntry:
        """Return the entry paused.

        Raises
        ------
        RecordError
            The state of the entry is unreadable too.
        """
        line, _, text = self.record.partition("\n")
        state = replace(PeriodicState.read(line), next_tick=None, status="paused")
        return replace(self, record=f"{state.line}\n{text}")


def read_entry(name: str, record: str) -> Periodic | UnreadableEntry:
    """Return the entry of a record; an :class:`UnreadableEntry` if it cannot be read."""
    try:
        return Periodic.unpack(name, record)
    except ValueError as exc:
        return UnreadableEntry(name, record, exc)


def required(name: str, entry: Any) -> Periodic:
    """Return *entry* if it exists and is readable.

    Raises
    ------
    PeriodicUnknown
        There is no entry of this name.
    Exception
        The entry cannot be read: :attr:`UnreadableEntry.error`.
    """
    if isinstance(entry, UnreadableEntry):
        raise entry.error
    if not isinstance(entry, Periodic):
        raise PeriodicUnknown(f"there is no periodic entry {name!r}")
    return entry


def source_in(record: str) -> str | None:
    """Return the source in a record; None if it is unreadable.

    Reads the source even if this process cannot read the schedule.
    """
    try:
        found = foreign.loads(record.partition("\n")[2]).get("source", API_SOURCE)
    except (ValueError, AttributeError, RecursionError):
        return None
    return found if isinstance(found, str) else None


def times_and_counts(state: PeriodicState | None) -> dict[str, Any]:
    """Return the fields of the state in an entry's JSON; None and 0 if the state is unreadable."""
    times = (None,) * 3 if state is None else (state.anchor, state.next_tick, state.last_tick)
    since, following, last_run_at = (
        ms if ms is None else datetime_of_ms(ms).isoformat() for ms in times
    )
    manual_runs = 0 if state is None else state.manual_runs
    return {
        "since": since,
        "next": following,
        "last_run_at": last_run_at,
        "total_run_count": 0 if state is None else state.count + manual_runs,
        "manual_runs": manual_runs,
    }


def _ms(text: str) -> int:
    """Return a time (ms) that a datetime can represent."""
    ms = int(text)
    if not 0 <= ms <= MAX_TICK_MS:
        raise ValueError(f"{ms} lies outside the years 1970 to 9999")
    return ms


def _moment(ms: int | None) -> datetime | None:
    return None if ms is None else datetime_of_ms(ms)
