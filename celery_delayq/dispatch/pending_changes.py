"""Changes in Redis that failed at first. Each is made again until it succeeds or is given up."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from celery_delayq.errors import BrokerUnavailable, CommandRefused, StoreFull
from celery_delayq.store.scripting.errors import OUTAGE_ERRORS
from celery_delayq.store.scripting.runner import is_fault_of_script
from celery_delayq.store.store import Store

logger = logging.getLogger(__name__)

#: Failures after which a change is given up. Outages and refusals do not count.
MAX_FAILURES = 10

#: Most changes that wait until Redis allows them.
MAX_REFUSED_CHANGES = 1000


class AfterFailure(Enum):
    """The place of a change in the row after it has failed."""

    #: The change stays first, and the thread tries again a little later.
    STAYS_FIRST = auto()
    #: The change goes behind the others: Redis may allow those.
    GOES_LAST = auto()
    #: The change is logged and never made.
    GIVEN_UP = auto()


@dataclass(slots=True)
class PendingChange:
    """A change that may be made twice; *loss_text* is logged if the change is never made."""

    make: Callable[[Store], Any]
    loss_text: str = ""
    failures: int = 0

    def note_failure(self, error: Exception, waiting: int) -> AfterFailure:
        """Count a failure and return the new place of the change.

        Parameters
        ----------
        error : Exception
            Why the change was not made.
        waiting : int
            Number of waiting changes, this one included.
        """
        if isinstance(error, OUTAGE_ERRORS):
            return AfterFailure.STAYS_FIRST
        # Redis may allow a refused change later, such as when a key has its type again.
        may_pass = isinstance(error, (CommandRefused, StoreFull)) and waiting <= MAX_REFUSED_CHANGES
        if not may_pass or is_fault_of_script(error):
            self.failures += 1
        if self.failures >= MAX_FAILURES:
            return AfterFailure.GIVEN_UP
        if may_pass:
            return AfterFailure.GOES_LAST
        if isinstance(error, CommandRefused) and not isinstance(error, StoreFull):
            return AfterFailure.GIVEN_UP
        # A client may raise anything while its connection is being closed.
        return AfterFailure.STAYS_FIRST


class PendingChanges:
    """Changes of one process that failed at first; any thread may add one.

    Parameters
    ----------
    wake : Callable[[], None]
        Wakes the thread that makes them.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._waiting: deque[PendingChange] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, make: Callable[[Store], Any], loss_text: str = "") -> None:
        """Add a change, which the thread makes soon, and before the process ends."""
        self._waiting.append(PendingChange(make, loss_text))
        self._wake()

    def flush(self, store: Store, until: float = math.inf) -> None:
        """Make the changes in their order until a monotonic time, but at least one.

        So all changes are made in the end, also if leases cannot be extended. Raises the error of a
        change that is to be tried again.
        """
        refused: Exception | None = None
        for _ in range(len(self._waiting)):
            change = self._waiting[0]
            try:
                change.make(store)
            except Exception as exc:
                match change.note_failure(exc, len(self._waiting)):
                    case AfterFailure.STAYS_FIRST:
                        raise
                    case AfterFailure.GOES_LAST:
                        refused = exc
                        self._waiting.append(change)
                    case AfterFailure.GIVEN_UP:
                        loss_text = change.loss_text or "A lease ends"
                        logger.exception("A change was not made. %s", loss_text)
            self._waiting.popleft()
            if time.monotonic() >= until:
                break
        if refused is not None:
            raise BrokerUnavailable(str(refused)) from refused

    def give_up(self) -> None:
        """Log the changes that are lost when the process ends while Redis is away."""
        for change in self._waiting.copy():
            if change.loss_text:
                logger.error("Redis was away when this process ended. %s", change.loss_text)
