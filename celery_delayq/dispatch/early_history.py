"""Runs whose messages were acknowledged before they began, on their way to the history."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from celery_delayq.store.schedule import Store

#: Seconds after which a run that has ended is sent.
DELAY = 0.1

#: Most runs to send at once.
MOST = 500


class EarlyRuns:
    """Those of one process; any thread may add some, one thread sends them.

    Parameters
    ----------
    worker_id : str
        The name of the process.
    most : int
        About how many runs the history is to keep; 0 when there is none.
    begin : Callable[[], None]
        Tells who sends them that there are some.

    Attributes
    ----------
    due : float
        By the monotonic clock, when to :meth:`flush`; infinite while there are none.
    """

    def __init__(self, worker_id: str, most: int, begin: Callable[[], None]) -> None:
        self.most = most
        self.due = math.inf
        self._worker_id = worker_id
        self._begin = begin
        self._waiting: list[bytes] = []
        self._is_told = False
        self._sending: list[bytes] = []
        self._number = 1  # that of no call: `claim` leaves it in Redis

    def __bool__(self) -> bool:
        return bool(self._waiting or self._sending)

    def add(self, run: bytes) -> None:
        """Note a run in the history: soon."""
        if not self.most:
            return
        self._waiting.append(run)
        if not self._is_told:
            self._is_told = True
            self.due = time.monotonic() + DELAY
            self._begin()

    def hurry(self) -> None:
        """Have them sent at once: the end is near."""
        if self:
            self.due = 0.0

    def flush(self, store: Store) -> None:
        """Send what waits; after a lost connection the same call again, which then is known."""
        # In this order: what is added meanwhile sets both anew, or is sent here.
        self.due = math.inf
        self._is_told = False
        try:
            while self:
                if not self._sending:
                    self._sending = self._waiting[:MOST]
                    del self._waiting[:MOST]  # meanwhile others may only have added some
                    self._number += 1
                store.history.add(self._worker_id, self._number, self.most, self._sending)
                self._sending = []
        except BaseException:
            self.due = 0.0
            raise
