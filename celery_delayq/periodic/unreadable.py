"""Periodic entries that cannot be read here. They can be shown, paused and removed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from celery_delayq.errors import PeriodicUnknown, RecordError
from celery_delayq.periodic.definition import source_in
from celery_delayq.periodic.state import Periodic, PeriodicState
from celery_delayq.periodic.wall_clock import moment_of

E = TypeVar("E", bound="Periodic | UnreadableEntry")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableEntry:
    """A periodic entry that cannot be read here.

    Its schedule is of a class that is not here, or its record is not one of this version.

    Attributes
    ----------
    name : str
    error : Exception
        Why it cannot be read.
    source : str | None
        As a definition has it; None where that cannot be read either.
    state : PeriodicState | None
        How it stands, likewise.
    data : Mapping[str, Any]
        What its record says, empty where it is no JSON.
    """

    name: str
    error: Exception
    source: str | None
    state: PeriodicState | None
    data: Mapping[str, Any]

    @classmethod
    def of(cls, name: str, record: str, error: Exception) -> UnreadableEntry:
        """Return what there is to read in a record all the same."""
        line, _, text = record.partition("\n")
        state, data = None, {}
        with suppress(RecordError):
            state = PeriodicState.read(line)
        source = source_in(text)
        if source is not None:
            data = json.loads(text)
        return cls(name=name, error=error, source=source, state=state, data=data)

    @property
    def problem(self) -> str:
        """Why it cannot be read, in words."""
        return str(self.error)

    @property
    def status(self) -> Literal["unreadable"]:
        """Always that: whether it is paused, or ended, *state* tells."""
        return "unreadable"

    @property
    def paused(self) -> bool:
        """Whether it is paused."""
        return self.state is not None and self.state.status == "paused"

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON can have it, with all that is needed to make it elsewhere."""
        state = self.state
        moments = ("since", "next", "last_run_at")
        stands = (state.anchor, state.tick, state.last) if state else (None,) * 3
        return {"name": self.name, **self.data} | {
            "name": self.name,
            "source": self.source,
            "when": None,
            "status": self.status,
            "problem": self.problem,
            "paused": self.paused,
            **{what: _told(ms) for what, ms in zip(moments, stands, strict=True)},
            "total_run_count": state.count + state.manual if state else 0,
            "manual_runs": state.manual if state else 0,
        }


def read_entry(name: str, record: str) -> Periodic | UnreadableEntry:
    """Return the entry of a record, whether it can be read here or not."""
    try:
        return Periodic.unpack(name, record)
    except ValueError as exc:
        return UnreadableEntry.of(name, record, exc)


def required(name: str, entry: Any) -> Periodic:
    """Return an entry that was found and can be read.

    Raises
    ------
    PeriodicUnknown
        There is none of that name.
    Exception
        It cannot be read here: :attr:`UnreadableEntry.error`.
    """
    if isinstance(entry, UnreadableEntry):
        raise entry.error
    if not isinstance(entry, Periodic):
        raise PeriodicUnknown(f"there is no periodic entry {name!r}")
    return entry


def by_name(entries: Iterable[E]) -> list[E]:
    """Return each once, by name."""
    return sorted({each.name: each for each in entries}.values(), key=lambda each: each.name)


def paused_record(record: str) -> tuple[str, str]:
    """Return the state line of a record, and the record with a paused state.

    Raises
    ------
    RecordError
        Its state cannot be read.
    """
    line, _, text = record.partition("\n")
    state = replace(PeriodicState.read(line), tick=None, status="paused")
    return line, f"{state.line}\n{text}"


def _told(ms: int | None) -> str | None:
    with suppress(OverflowError):  # it may be anything
        return None if ms is None else moment_of(ms).isoformat()
    return None
