"""Measure how long the machine runs no thread of a process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

#: Seconds between two reads of the clock.
LOOK = 0.005


class Pauses:
    """The longest delay with which a waiting thread woke up, in seconds."""

    def __init__(self) -> None:
        self.longest = 0.0

    def forget(self) -> None:
        """Start again with 0."""
        self.longest = 0.0

    def watch(self, stopping: threading.Event) -> None:
        """Wait repeatedly for an event that does not come."""
        began = time.monotonic()
        while not stopping.wait(LOOK):
            now = time.monotonic()
            self.longest = max(self.longest, now - began - LOOK)
            began = now


@contextmanager
def watched() -> Iterator[Pauses]:
    """Measure during the ``with`` block."""
    pauses, stopping = Pauses(), threading.Event()
    thread = threading.Thread(target=pauses.watch, args=(stopping,), daemon=True)
    thread.start()
    try:
        yield pauses
    finally:
        stopping.set()
        thread.join()
