"""Periodic entries that this process cannot read. They can be listed, paused and removed."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from celery_delayq.errors import PeriodicUnknown, RecordError
from celery_delayq.periodic.state import Periodic, PeriodicState, source_in, times_and_counts
from celery_delayq.utils import foreign


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
        state = replace(PeriodicState.read(line), tick=None, status="paused")
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
