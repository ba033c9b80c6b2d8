"""What exports and imports tell of what they have done, and of what went wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple, Protocol

from kombu.exceptions import OperationalError

from celery_delayq.errors import CommandRefused, TransferError
from celery_delayq.store.schedule import Store

#: Of how many entries that were passed over a report tells why.
EXAMPLES = 100


class Unreadable(NamedTuple):
    """An entry in Redis that was left out of an export, and why."""

    queue: str
    id: str
    reason: str


@dataclass(slots=True)
class Exported:
    """What an export has written so far.

    *total* is about how many entries there are, None where that is not known; *made* is when it
    began by Redis' clock; *unreadable* tells of the first of those that were left out, and *pruned*
    how many rows of a database were removed.
    """

    made: str = ""
    total: int | None = None
    entries: int = 0
    left_out: int = 0
    pruned: int = 0
    unreadable: list[Unreadable] = field(default_factory=list)

    @property
    def looked(self) -> int:
        """How many entries were looked at."""
        return self.entries + self.left_out

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON types."""
        return {
            "made": self.made,
            "entries": self.entries,
            "left_out": self.left_out,
            "pruned": self.pruned,
            "unreadable": [each._asdict() for each in self.unreadable],
        }


class Refusal(NamedTuple):
    """A line of a file, or a row of a database in order of due, that is no entry, and why."""

    line: int
    reason: str


#: What became of an entry: it is scheduled or ready now, or a dead letter again; the same one is
#: there already; another one has its unique key; its queue is full; it was overdue and not wanted;
#: the filter does not mean it; it cannot be read.
Became = Literal[
    "scheduled", "ready", "restored", "duplicate", "kept", "full", "overdue", "filtered", "refused"
]


@dataclass(slots=True)
class Imported:
    """What became of the entries, or dead letters, of an import so far.

    *total* is about how many there are, None where that is not known; *outcomes* counts them by
    what became of each, or would in a dry run; *refusals* tells of the first that were refused.
    """

    dry_run: bool = False
    total: int | None = None
    outcomes: Counter[Became] = field(default_factory=Counter)
    refusals: list[Refusal] = field(default_factory=list)

    @property
    def looked(self) -> int:
        """How many entries were looked at."""
        return sum(self.outcomes.values())

    @property
    def missing(self) -> int:
        """How many entries were meant and could not be taken."""
        return self.outcomes["refused"] + self.outcomes["full"]

    def expect(self, number: int | None) -> None:
        """Note that about so many more are to come."""
        if number is not None:
            self.total = (self.total or 0) + number

    def refuse(self, line: int, reason: str) -> None:
        """Note that a line or row is none."""
        self.outcomes["refused"] += 1
        if len(self.refusals) < EXAMPLES:
            self.refusals.append(Refusal(line, reason))

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON types."""
        return {
            "dry_run": self.dry_run,
            "outcomes": dict(self.outcomes),
            "refusals": [each._asdict() for each in self.refusals],
        }


@dataclass(slots=True)
class Archived:
    """What an archive or an export of dead letters has done so far.

    Attributes
    ----------
    made : str
        When it began, by Redis' clock.
    total : int | None
        About how many dead letters there are to look at.
    looked : int
        Dead letters that were looked at.
    dead_letters : int
        Dead letters that are in the file or the database now.
    new : int
        How many of them were not in it before.
    moved : int
        How many of them are in Redis no more.
    gone : int
        How many others have replayed, purged or archived meanwhile: they are in the database too.
    """

    made: str = ""
    total: int | None = None
    looked: int = 0
    dead_letters: int = 0
    new: int = 0
    moved: int = 0
    gone: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON types."""
        names = ("made", "dead_letters", "new", "moved", "gone")
        return {name: getattr(self, name) for name in names}


class Report(Protocol):
    """What tells how far something is."""

    @property
    def total(self) -> int | None:
        """About how many there are."""

    @property
    def looked(self) -> int:
        """How many were looked at."""


@contextmanager
def telling(report: Report, hint: str, what: str = "entries") -> Iterator[None]:
    """Tell how far it went when Redis, a file or a database fails."""
    try:
        yield
    except BrokenPipeError:
        raise  # who reads has seen enough
    except (TransferError, CommandRefused, OperationalError, OSError) as exc:
        if not report.looked:
            raise TransferError(str(exc)) from exc
        raise TransferError(f"{exc}; stopped after {report.looked:,} {what}, {hint}") from exc


def server_of(store: Store) -> str:
    """Return which Redis it is, made of what is no secret."""
    pool = store.client.connection_pool
    known = pool.connection_kwargs
    place = known.get("path") or f"{known.get('host', 'localhost')}:{known.get('port', 6379)}"
    place = getattr(pool, "service_name", None) or place
    prefix = f", prefix {store.keys.prefix}" if store.keys.prefix else ""
    return f"{place}/{store.keys.database}{prefix}"


def shown_filter(filter: Any) -> dict[str, Any]:
    """Return what is given of a filter as JSON types."""
    given = {each.name: getattr(filter, each.name) for each in fields(filter)}
    return {
        name: value if isinstance(value, (int, str)) else value.isoformat()
        for name, value in given.items()
        if value is not None
    }


@contextmanager
def sqlalchemy_needed() -> Iterator[None]:
    """Tell how to get SQLAlchemy where it is missing."""
    try:
        yield
    except ImportError as exc:
        raise TransferError(
            f'databases need SQLAlchemy ({exc}): pip install "celery-delayq[sql]"'
        ) from exc
