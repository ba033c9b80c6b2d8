"""Results of exports, imports and archives, and how their errors are reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from kombu.exceptions import OperationalError

from celery_delayq.errors import CommandRefused, InvalidPlace, TransferError
from celery_delayq.store.error_text import describe_error

#: Most examples of unreadable entries in a result.
MAX_EXAMPLES = 100


class LeftOut(NamedTuple):
    """An unreadable entry in Redis that an export left out."""

    queue: str
    id: str
    reason: str


@dataclass(slots=True)
class Exported:
    """Result of an export, also during the export.

    Attributes
    ----------
    made : str
        Time of the start by Redis' clock, in ISO 8601.
    total : int | None
        Approximate number of entries; None if it is not known.
    entries : int
        Entries that were written.
    left_out : int
        Entries that could not be read.
    unknown : int
        Entries whose arguments are not known, in an export by argument. They were not written:
        their content is not decoded, or this app does not know the signature of their task.
    pruned : int
        Rows that were removed from the database.
    unreadable : list[LeftOut]
        The first 100 entries that were left out.
    """

    made: str = ""
    total: int | None = None
    entries: int = 0
    left_out: int = 0
    unknown: int = 0
    pruned: int = 0
    unreadable: list[LeftOut] = field(default_factory=list)

    @property
    def looked(self) -> int:
        """Entries that were read."""
        return self.entries + self.left_out

    def as_dict(self) -> dict[str, Any]:
        """Return the result as JSON types."""
        numbers = {
            name: getattr(self, name) for name in ("entries", "left_out", "unknown", "pruned")
        }
        unreadable = [each._asdict() for each in self.unreadable]
        return {"made": self.made, **numbers, "unreadable": unreadable}


class Refusal(NamedTuple):
    """A line of a file, or a row of a database, that cannot be imported, and the reason."""

    line: int
    reason: str


#: Outcome of one row. ``scheduled``, ``ready``: the task is now scheduled or ready. ``restored``:
#: the row is a dead letter again. ``duplicate``: the same entry already exists. ``kept``: another
#: task has the unique key. ``full``: the queue is full. ``overdue``: the entry was due and was
#: skipped. ``filtered``: the filter does not match. ``unknown``: the filter names arguments, and
#: those of the row are not known here. ``refused``: the row cannot be read.
ImportOutcome = Literal[
    "scheduled",
    "ready",
    "restored",
    "duplicate",
    "kept",
    "full",
    "overdue",
    "filtered",
    "unknown",
    "refused",
]


@dataclass(slots=True)
class Imported:
    """Result of an import of entries or dead letters, also during the import.

    Attributes
    ----------
    dry_run : bool
        Whether nothing was changed.
    total : int | None
        Approximate number of rows; None if it is not known.
    outcomes : Counter
        Rows by outcome.
    refusals : list[Refusal]
        The first 100 refused rows.
    """

    dry_run: bool = False
    total: int | None = None
    outcomes: Counter[ImportOutcome] = field(default_factory=Counter)
    refusals: list[Refusal] = field(default_factory=list)

    @property
    def looked(self) -> int:
        """Rows that were read."""
        return sum(self.outcomes.values())

    @property
    def missing(self) -> int:
        """Rows that match the filter but could not be imported."""
        return self.outcomes["refused"] + self.outcomes["full"]

    def refuse(self, line: int, reason: str) -> None:
        """Count a line or row that cannot be imported."""
        self.outcomes["refused"] += 1
        if len(self.refusals) < MAX_EXAMPLES:
            self.refusals.append(Refusal(line, reason))

    def as_dict(self) -> dict[str, Any]:
        """Return the result as JSON types."""
        return {
            "dry_run": self.dry_run,
            "outcomes": dict(self.outcomes),
            "refusals": [each._asdict() for each in self.refusals],
        }


@dataclass(slots=True)
class Archived:
    """Result of an archive or an export of dead letters, also during the run.

    Attributes
    ----------
    made : str
        Time of the start by Redis' clock, in ISO 8601.
    total : int | None
        Approximate number of dead letters to read.
    looked : int
        Dead letters that were read.
    dead_letters : int
        Dead letters that are now in the file or the database.
    new : int
        Dead letters that this run added.
    moved : int
        Dead letters that this run deleted in Redis.
    gone : int
        Dead letters that other calls replayed, purged or archived during the run.
    unknown : int
        Dead letters whose arguments are not known, in a search by argument. They stay, and were not
        written.
    """

    made: str = ""
    total: int | None = None
    looked: int = 0
    dead_letters: int = 0
    new: int = 0
    moved: int = 0
    gone: int = 0
    unknown: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the result as JSON types."""
        names = ("made", "dead_letters", "new", "moved", "gone", "unknown")
        return {name: getattr(self, name) for name in names}


#: The progress of an export, import or archive.
TransferProgress = Exported | Imported | Archived


#: Advice after an error: if the rows so far are kept, and if they are not.
ADDED_ONCE = "run it again: what is there already is not added twice"
NOTHING_KEPT = "nothing is kept of it: run it again"


@contextmanager
def transfer_errors(report: TransferProgress, noun: str, hint: str = ADDED_ONCE) -> Iterator[None]:
    """Raise :class:`TransferError` with the progress if Redis, a file or a database fails."""
    try:
        yield
    except (BrokenPipeError, InvalidPlace):
        raise  # the reader closed the pipe, or nothing has begun
    except (TransferError, CommandRefused, OperationalError, OSError) as exc:
        why = describe_error(exc)
        if not report.looked:
            raise TransferError(why) from exc
        raise TransferError(f"{why}; stopped after {report.looked:,} {noun}, {hint}") from exc


@contextmanager
def sqlalchemy_needed() -> Iterator[None]:
    """Raise :class:`TransferError` with the install command if SQLAlchemy is missing."""
    try:
        yield
    except ImportError as exc:
        raise TransferError(
            f'databases need SQLAlchemy ({exc}): pip install "celery-delayq[sql]"'
        ) from exc
