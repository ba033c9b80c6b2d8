"""Stop a process with SIGSTOP for a while."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from celery_delayq.testing import wait_until


def stop(pid: int) -> None:
    """Stop a process, and return when none of its threads runs.

    The signal alone is not enough: the thread that handles it may wait for a processor, and other
    threads run until then.
    """
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: _states(pid) <= {"T", "t"}, what=f"process {pid} stands still")


@contextmanager
def stopped(pid: int | None) -> Iterator[None]:
    """Stop a process during the ``with`` block."""
    assert pid is not None
    stop(pid)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _states(pid: int) -> set[str]:
    """Return the states of a process' threads, by the characters of proc(5)."""
    found = set()
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # this thread has ended
            found.add(stat.read_text().rpartition(")")[2].split()[0])
    return found
