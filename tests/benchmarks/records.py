"""The records of a run's tasks: fixed-size records in one append-only file.

A record is two doubles: when the task was due (or sent) and when it started, both in seconds since
the epoch. A record is one unbuffered ``write`` of 16 bytes. It takes two microseconds, is complete
under every pool, and the reader sees it at once.
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
    """The writer, in the worker."""

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
    """The reader, in the benchmark."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def __len__(self) -> int:
        return self.path.stat().st_size // _RECORD.size

    def read(self, first: int = 0) -> list[Record]:
        """Return all records from number ``first`` on, in the order of writing."""
        data = self.path.read_bytes()[first * _RECORD.size :]
        whole = len(data) - len(data) % _RECORD.size
        return [Record(*pair) for pair in _RECORD.iter_unpack(data[:whole])]

    def clear(self) -> None:
        """Delete all records; no worker may run."""
        os.truncate(self.path, 0)

    def wait_for(self, count: int, timeout: float, alive: Callable[[], None]) -> None:
        """Wait until there are ``count`` records; a slow machine is waited for.

        :param timeout: seconds without a new record until :class:`BenchError` is raised.
        :param alive: raises if the worker has ended.
        """
        last, began = len(self), time.monotonic()
        while (found := len(self)) < count:
            alive()
            if found > last:
                last, began = found, time.monotonic()
            if time.monotonic() - began > timeout:
                raise BenchError(f"{found} of {count} tasks ran, and none for {timeout:g} s")
            time.sleep(0.005)
