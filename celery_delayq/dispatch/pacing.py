"""When a dispatcher looks at the schedule next. No I/O.

One dispatcher of a fleet is on duty: the one that promoted last. It wakes at the moment an entry is
due. The others look now and then, the less often the more they are, and promote only entries that
are overdue, so that the work does not grow with their number. Duty is a hint: a dispatcher that is
killed or too slow on duty costs the wait for the next look of any other.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from celery_delayq.store.scripting.replies import Look, Promoted

#: Seconds after its due time from which an entry is overdue: whoever sees it promotes it.
OVERDUE = 0.005

#: Seconds between two looks of a dispatcher that is not on duty: so many for each of the fleet,
#: at least, at most. The most is what the last survivor of a fleet may be late, with the jitter.
LOOK_EACH = 0.009
LOOK_LEAST, LOOK_MOST = 0.35, 0.9
JITTER = 0.05

#: Seconds between two promotions of a steady stream, so that each moves several entries: alone,
#: for each of the fleet more, at most.
GATHER = 0.0015
GATHER_EACH = 0.00002
GATHER_MOST = 0.005

#: Seconds by which it stands back where it finds nothing to promote again and again: at first, at
#: most.
STAND_BACK = (0.001, 0.02)

#: After an error of one queue a dispatcher leaves the duty to others: for so many seconds to
#: whoever wants it, and so long it does not take it by promoting.
ASIDE, MODEST = 2.0, 60.0


def wait_off_duty(fleet: int) -> float:
    """Return the seconds between two looks of one of so many that is not on duty, 0 for unknown."""
    return min(max(LOOK_LEAST, fleet * LOOK_EACH), LOOK_MOST) if fleet else LOOK_MOST


@dataclass(slots=True)
class PollTimer:
    """When to look at the schedule next, and whether to promote then.

    Parameters
    ----------
    interval : float
        Most seconds between two looks.
    monotonic : Callable[[], float]
        The process' own clock.
    uniform : Callable[[float, float], float]
        Returns a random number between two.
    """

    interval: float
    monotonic: Callable[[], float] = time.monotonic
    uniform: Callable[[float, float], float] = random.uniform
    #: The queue to promote from next; None to look at the next-due index.
    queue: str | None = None
    on_duty: bool = True
    #: How many dispatchers there are, as far as is known.
    fleet: int = 1
    _wake_at: float = 0.0
    _looked: float = float("-inf")
    _stand_back: float = 0.0
    _is_spread: bool = False
    _aside_until: float = float("-inf")
    _modest_until: float = float("-inf")

    def after(self, look: Look, promoted: Promoted | None = None) -> None:
        """Plan by Redis' answer; *promoted* is given after a promotion."""
        if look.on_duty is not None:
            self.on_duty = look.on_duty
        if look.fleet is not None:
            self.fleet = look.fleet
            self._looked = self.monotonic()
        wait = self.interval if look.wait is None else min(look.wait, self.interval)
        self.queue = look.queue
        if promoted is not None and promoted.moved and look.wait == 0:
            wait = 0.0  # a full batch, or several queues: go on, on duty or not
        elif not self.on_duty:
            if promoted is not None or not look.is_overdue(OVERDUE):
                self.queue, wait = None, self._until_next_look()
        elif promoted is not None and look.wait is not None:
            wait = min(max(wait, self._gather(promoted)), self.interval)
        self._wake_at = self.monotonic() + wait

    def _gather(self, promoted: Promoted) -> float:
        """Return the least seconds until the next promotion of a steady stream."""
        low, high = STAND_BACK
        is_in_vain = not (promoted.moved or promoted.dead_lettered)
        self._stand_back = min(max(2 * self._stand_back, low), high) if is_in_vain else 0.0
        return min(GATHER + self.fleet * GATHER_EACH, GATHER_MOST) + self._stand_back

    def _until_next_look(self) -> float:
        wait = wait_off_duty(self.fleet)
        if not self._is_spread:  # a fleet may have started, or reconnected, at the same moment
            self._is_spread = True
            wait = self.uniform(0.0, wait)
        return min(wait * self.uniform(1 - JITTER, 1 + JITTER), self.interval)

    def wake_in(self, queue: str, seconds: float) -> None:
        """Note that *queue* has an entry due in *seconds*, which is for the one on duty."""
        wake_at = self.monotonic() + seconds
        if self.on_duty and wake_at < self._wake_at:
            self.queue, self._wake_at = queue, wake_at

    def look_now(self, unless_within: float) -> None:
        """Look at the next-due index now, unless the next look is so soon anyway."""
        if self.wait() > unless_within:
            self.queue, self._wake_at = None, self.monotonic()

    @property
    def next_queue(self) -> str | None:
        """The queue to promote from now; None when it is time to look at the next-due index."""
        return None if self.monotonic() - self._looked >= self.interval else self.queue

    def wait(self) -> float:
        """Return for how many seconds to sleep, 0 when it is time."""
        return max(0.0, self._wake_at - self.monotonic())

    def reconnected(self) -> None:
        """Spread the next look: all of a fleet may have connected anew at the same moment."""
        self._is_spread = False

    # -- errors of one queue, which others of the fleet may not have

    def stand_aside(self) -> bool:
        """Note an error; return whether to leave the duty to others."""
        now = self.monotonic()
        if self.fleet == 1 or now < self._modest_until:
            return False
        self._aside_until, self._modest_until = now + ASIDE, now + MODEST
        self.on_duty = False
        return True

    @property
    def may_take_duty(self) -> bool:
        """Whether to be on duty when nobody is."""
        return self.monotonic() >= self._aside_until

    @property
    def takes_duty_by_promoting(self) -> bool:
        """Whether to be on duty after promoting what another one left overdue."""
        return self.monotonic() >= self._modest_until
