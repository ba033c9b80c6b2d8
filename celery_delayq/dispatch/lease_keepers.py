"""Which lease keepers there are in this process."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from celery_delayq.dispatch.lease_keeper import LeaseKeeper

#: Seconds for which a process that ends waits for Redis, where it has something to tell.
PATIENCE = 5.0


@dataclass
class Keepers:
    """The keepers of this process, one for each Redis database."""

    _known: dict[tuple[int, str], LeaseKeeper] = field(default_factory=dict)

    def get(self, place: str, make: Callable[[], LeaseKeeper]) -> LeaseKeeper:
        """Return the keeper for a place, made if there is none; a forked child makes its own."""
        own = (os.getpid(), place)
        known = self._known.get(own)
        if known is None:
            self._known = {k: v for k, v in self._known.items() if k[0] == own[0]}
            # Of two threads that make one, both use the first.
            known = self._known.setdefault(own, make())
        return known

    def end(self) -> None:
        """Have Redis told what it has not been told yet: the process ends."""
        until = time.monotonic() + PATIENCE
        for (pid, _), keeper in self._known.items():
            if pid == os.getpid():
                keeper.end(until)


#: The keepers of this process.
KEEPERS = Keepers()
atexit.register(KEEPERS.end)
