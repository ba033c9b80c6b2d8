"""Script calls that have not been made yet, so that they can also go into a pipeline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from celery_delayq.message import Entry
from celery_delayq.scripts import Script


@dataclass(slots=True)
class Call:
    """One script call: the script, and its KEYS and ARGV."""

    script: Script
    keys: list[str]
    args: list[Any]


@dataclass(slots=True)
class Puts(Call):
    """A call of ``schedule.lua`` that grows: flat lists, since a batch holds many of them.

    A tuple for each message would set off the garbage collector again and again.
    """

    ready: Callable[[int], str]
    size: int = 0
    _lists: dict[int, int] = field(default_factory=dict)

    def add(self, entry: Entry) -> None:
        """Add a message."""
        id, (due_ms, relative), step, data = entry
        number = self._lists.get(step)
        if number is None:
            self.keys.append(self.ready(step))
            number = self._lists[step] = len(self.keys)
        # A countdown that is over is due at any time.
        due = due_ms if not relative else f"+{due_ms}" if due_ms > 0 else 0
        self.args += id, due, number, data
        self.size += 1
