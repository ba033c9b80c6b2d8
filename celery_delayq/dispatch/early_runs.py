"""History lines of runs whose messages were acknowledged early, on their way to Redis."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from celery_delayq.store.store import Store

#: Seconds for which lines are collected for one call, and most lines of one call.
COLLECT_SECONDS = 0.1
MAX_RUNS = 500


class EarlyRuns:
    """Runs whose messages were acknowledged before the task began, on their way to the history.

    Any thread may add runs, one thread sends them. Redis ignores a call whose number is not above
    the number of the last call. So a failed call is repeated before any later call.

    Parameters
    ----------
    worker_id : str
        The name of the process.
    history_size : int
        Approximate number of runs that the history keeps; 0 without a history.
    wake : Callable[[], None]
        Wakes the thread that sends the runs.

    Attributes
    ----------
    due : float
        Monotonic time of the next :meth:`flush`; infinite while no run waits.
    """

    def __init__(self, worker_id: str, history_size: int, wake: Callable[[], None]) -> None:
        self.history_size = history_size
        self.due = math.inf
        self._worker_id = worker_id
        self._wake = wake
        self._waiting: list[bytes] = []
        self._sending: list[bytes] = []
        self._call_number = 1  # no call has it: `claim` writes it to Redis

    def __bool__(self) -> bool:
        # The thread must not stop before `due`: a run that is added until then does not wake it.
        return bool(self._waiting or self._sending) or self.due < math.inf

    def add(self, run: bytes) -> None:
        """Add a run, which is sent within :data:`COLLECT_SECONDS`."""
        if not self.history_size:
            return
        self._waiting.append(run)
        if self.due == math.inf:
            self.due = time.monotonic() + COLLECT_SECONDS
            self._wake()

    def send_soon(self) -> None:
        """Have all runs sent at once, since the process ends soon."""
        if self:
            self.due = 0.0

    def flush(self, store: Store) -> None:
        """Send the waiting runs.

        After a lost connection the same call is repeated, and Redis recognizes its number.
        """
        # First: a run that is added meanwhile sets `due` again, or is sent here.
        self.due = math.inf
        try:
            while self._sending or self._waiting:
                if not self._sending:
                    self._sending = self._waiting[:MAX_RUNS]
                    del self._waiting[:MAX_RUNS]  # meanwhile others may only have added some
                    self._call_number += 1
                number = self._call_number
                store.history.add(self._worker_id, number, self.history_size, self._sending)
                self._sending = []
        except BaseException:
            self.due = 0.0
            raise
