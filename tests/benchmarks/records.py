"""What the tasks of a run leave behind: fixed-size records in one append-only file.

A record is two doubles: when the task was due (or sent) and when it started, both in seconds
since the epoch. One unbuffered ``write`` of 16 bytes costs a task two microseconds, is whole
under every pool, and is seen by the reader at once.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from .model import BenchError

_RECORD = struct.Struct("<dd")


class Recorder:
    """The writing end, in the worker."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def add(self, due: float, start: float) -> None:
        """Append one record; both times in seconds since the epoch."""
        os.write(self._file, _RECORD.pack(due, start))


class Record(NamedTuple):
    """One run of a task; times in seconds since the epoch."""

    due: float
    start: float

    @property
    def lateness_ms(self) -> float:
        """Start minus due, in milliseconds."""
        return (self.start - self.due) * 1000


class Records:
    """The reading end, in the benchmark."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def __len__(self) -> int:
        return self.path.stat().st_size // _RECORD.size

    def read(self, first: int = 0) -> list[Record]:
        """All records from number ``first`` on, in the order in which they were written."""
        data = self.path.read_bytes()[first * _RECORD.size :]
        whole = len(data) - len(data) % _RECORD.size
        return [Record(*pair) for pair in _RECORD.iter_unpack(data[:whole])]

    def clear(self) -> None:
        """Forget all records; no worker may be running."""
        os.truncate(self.path, 0)

    def wait_for(self, count: int, timeout: float, alive: Callable[[], None]) -> None:
        """Return once ``count`` records are there.

        :param timeout: seconds until :class:`BenchError` is raised.
        :param alive: raises when the worker is gone, so that nobody waits for the dead.
        """
        deadline = time.monotonic() + timeout
        while len(self) < count:
            alive()
            if time.monotonic() > deadline:
                raise BenchError(f"only {len(self)} of {count} tasks ran within {timeout:g} s")
            time.sleep(0.005)
