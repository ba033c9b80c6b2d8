"""Measure for how long the machine runs nobody, since other programs use it too."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

#: Seconds between two looks at the clock.
LOOK = 0.005


class Pauses:
    """The longest time by which a thread that only waits woke up too late, in seconds."""

    def __init__(self) -> None:
        self.longest = 0.0

    def forget(self) -> None:
        """Begin anew."""
        self.longest = 0.0

    def watch(self, stopping: threading.Event) -> None:
        """Wait again and again, for what does not come."""
        began = time.monotonic()
        while not stopping.wait(LOOK):
            now = time.monotonic()
            self.longest = max(self.longest, now - began - LOOK)
            began = now


@contextmanager
def watched() -> Iterator[Pauses]:
    """Yield the pauses meanwhile."""
    pauses, stopping = Pauses(), threading.Event()
    thread = threading.Thread(target=pauses.watch, args=(stopping,), daemon=True)
    thread.start()
    try:
        yield pauses
    finally:
        stopping.set()
        thread.join()
