"""When a dispatcher looks at the schedule next. No I/O.

One dispatcher of a fleet is on duty: the dispatcher that promoted last. It wakes at the moment an
entry is due. The other dispatchers look rarely, in a larger fleet more rarely, and promote only
overdue entries. So the work does not grow with the size of the fleet. Each look of the dispatcher
on duty sends a heartbeat through Redis. When heartbeats are missing, the others look at once. Duty
is a hint: a slow dispatcher on duty delays an entry until the next look of any other, and a killed
one delays it by less than half a second.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil

from celery_delayq.store.scripting.replies import Look, Promoted

#: Seconds after its due time from which an entry is overdue: any dispatcher promotes it.
OVERDUE_SECONDS = 0.005

#: Seconds between two looks of a dispatcher off duty, per dispatcher of the fleet.
LOOK_SECONDS_PER_DISPATCHER = 0.02
#: Least seconds between two looks of a dispatcher off duty.
MIN_LOOK_SECONDS = 0.35
#: Most seconds between two looks of a dispatcher off duty while no heartbeats come.
MAX_LOOK_SECONDS = 0.9
#: Part by which the time between two looks off duty varies.
JITTER = 0.05

#: Seconds between two looks of the dispatcher on duty. Each look sends a heartbeat.
HEARTBEAT_SECONDS = 0.3
#: Least and largest number of missing heartbeats after which another dispatcher looks.
MISSED_HEARTBEATS = (1.25, 1.48)

#: Least and most seconds between two promotions of a steady stream of entries.
MIN_GATHER_SECONDS, MAX_GATHER_SECONDS = 0.0012, 0.004
#: Entries that one promotion of a stream gathers.
GATHERED_ENTRIES = 2
#: Promotions over which the time between two entries is averaged.
AVERAGED_PROMOTIONS = 4

#: A poll of a socket takes whole ms and may end up to one ms late. So the poll ends this many
#: seconds early, and a sleep waits for the rest.
POLL_MARGIN_SECONDS = 0.002

#: Largest delay of a reply, in seconds, from which the clock offset is still computed. After a
#: larger delay somebody may have set a clock.
MAX_REPLY_DELAY_SECONDS = 0.002
#: Largest drift between two clocks, in seconds per second.
CLOCK_DRIFT_RATE = 0.0005

#: Two promotions belong to one stream if the time between them is at most this many times
#: :attr:`PollTimer.gather`.
STREAM_GAP_FACTOR = 2

#: First and longest additional wait, in seconds, of a dispatcher whose promotions find nothing:
#: another dispatcher promoted the entries.
EMPTY_LOOK_SECONDS = (0.001, 0.02)

#: Seconds after an error of one queue for which a dispatcher does not go on duty at all.
OFF_DUTY_SECONDS = 2.0
#: Seconds after an error of one queue for which a promotion of an overdue entry does not put the
#: dispatcher on duty, and for which the dispatcher skips the queue.
NO_CLAIM_SECONDS = 60.0

#: Most queues that a dispatcher skips: each call names them.
MAX_SKIPPED_QUEUES = 1000


def wait_off_duty(fleet: int) -> float:
    """Return the seconds between two looks off duty in a fleet of this size; 0: size unknown."""
    return min(_wait_with_heartbeats(fleet), MAX_LOOK_SECONDS)


def _wait_with_heartbeats(fleet: int) -> float:
    """Return the seconds between two looks off duty while heartbeats come."""
    return max(MIN_LOOK_SECONDS, fleet * LOOK_SECONDS_PER_DISPATCHER) if fleet else MAX_LOOK_SECONDS


@dataclass(slots=True)
class PollTimer:
    """When to look at the schedule next, and whether to promote then.

    Parameters
    ----------
    interval : float
        Most seconds between two looks on duty, and off duty without heartbeats.
    monotonic : Callable[[], float]
        The process' own clock.
    uniform : Callable[[float, float], float]
        Returns a random number between two.
    gather : float
        Seconds between two promotions of a steady stream. With more than
        :data:`MIN_GATHER_SECONDS`, all dispatchers of a process promote from streams at the same
        moments, so that the consumer wakes up once for all of them.
    """

    interval: float
    monotonic: Callable[[], float] = time.monotonic
    uniform: Callable[[float, float], float] = random.uniform
    gather: float = MIN_GATHER_SECONDS
    #: The queue to promote from next; None to look at the next-due index.
    queue: str | None = None
    on_duty: bool = True
    #: Number of dispatchers in the fleet, by the last look.
    fleet: int = 1
    _wake_at: float = 0.0
    #: Off duty: when to look if no heartbeat comes until then.
    _heartbeat_due_at: float = float("-inf")
    #: When the last heartbeat came.
    _heartbeat_at: float = float("-inf")
    _looked_at: float = float("-inf")
    _empty_look_seconds: float = 0.0
    #: When the last promotion moved entries, and whether it belonged to a stream.
    _promoted_at: float = float("-inf")
    _is_stream: bool = False
    #: Average seconds between two entries.
    _entry_seconds: float = 1.0
    #: Seconds by which Redis' clock is ahead of ours, by the fastest reply, and when it came.
    _clock_ahead: tuple[float, float] = float("-inf"), 0.0
    _is_start_spread: bool = False
    _off_duty_until: float = float("-inf")
    _no_claim_until: float = float("-inf")

    def note_look(self, look: Look, promoted: Promoted | None = None) -> None:
        """Plan the next look by a reply of Redis; after a promotion *promoted* is given."""
        now = self.monotonic()
        self._note_duty(look, promoted, now)
        until_look = max(0.0, self._looked_at + self._max_look_seconds - now)
        delay = self._reply_delay(look, now, in_vain=promoted is not None and promoted.is_in_vain)
        until_due = until_look
        if look.wait is not None:
            until_due = min(until_look, max(0.0, look.wait - delay))
        is_same, self.queue = look.queue == self.queue, look.queue
        if promoted is not None and promoted.moved:
            self._note_entries(promoted.moved, now)
        if promoted is not None and self._goes_on(look, promoted, is_same=is_same):
            wait = 0.0
        elif not self.on_duty and (promoted is not None or not look.is_overdue(OVERDUE_SECONDS)):
            self.queue, wait = None, self._plan_look_off_duty()
        elif self.on_duty and promoted is not None and look.wait is not None:
            gather = self._gather_seconds(promoted, until_due, now, is_same=is_same)
            wait = min(max(until_due, gather), until_look)
        else:
            wait = until_due
        self._wake_at = now + wait

    def _note_duty(self, look: Look, promoted: Promoted | None, now: float) -> None:
        """Note who is on duty, and the size of the fleet."""
        has_taken_duty = promoted is not None and look.on_duty and not self.on_duty
        if look.on_duty is not None:
            self.on_duty = look.on_duty
        if look.fleet is not None:
            self.fleet, self._looked_at = look.fleet, now
        if has_taken_duty and self.fleet > 1:
            # Plan the next look soon: its heartbeat announces the new dispatcher on duty.
            self._looked_at = self._heartbeat_at

    def _note_entries(self, moved: int, now: float) -> None:
        """Note that a promotion moved entries, for the time between two entries."""
        self._is_stream = now - self._promoted_at <= STREAM_GAP_FACTOR * self.gather
        spacing = min(1.0, (now - self._promoted_at) / moved)
        self._entry_seconds += (spacing - self._entry_seconds) / AVERAGED_PROMOTIONS
        self._promoted_at = now

    def _goes_on(self, look: Look, promoted: Promoted, *, is_same: bool) -> bool:
        """Return whether to promote at once, because more entries are due.

        Either the last promotion moved entries, also of a dispatcher off duty; or, on duty, another
        queue has due entries. So names in the index that are no queues delay no queue behind them.
        """
        return look.wait == 0 and bool(promoted.moved or (self.on_duty and not is_same))

    @property
    def _max_look_seconds(self) -> float:
        """Most seconds between two looks."""
        sends_heartbeats = self.on_duty and self.fleet > 1
        return min(self.interval, HEARTBEAT_SECONDS) if sends_heartbeats else self.interval

    def note_heartbeat(self) -> None:
        """Note a heartbeat: the dispatcher on duty has looked."""
        missing = min(self.interval, HEARTBEAT_SECONDS) * self.uniform(*MISSED_HEARTBEATS)
        self._heartbeat_at = self.monotonic()
        self._heartbeat_due_at = self._heartbeat_at + missing

    def _reply_delay(self, look: Look, now: float, *, in_vain: bool) -> float:
        """Return by how many seconds a reply was slower than the fastest reply.

        Redis computed ``look.wait`` that many seconds ago, so the caller subtracts the delay. A
        promotion *in_vain* found nothing due: the former delay was computed too large, and the
        measurement begins again.
        """
        ahead = look.now / 1_000_000 - now
        most, at = self._clock_ahead
        delay = most - CLOCK_DRIFT_RATE * (now - at) - ahead
        if in_vain or not 0.0 <= delay <= MAX_REPLY_DELAY_SECONDS:
            self._clock_ahead, delay = (ahead, now), 0.0
        return delay

    def _gather_seconds(
        self, promoted: Promoted, wait: float, now: float, *, is_same: bool
    ) -> float:
        """Return the least seconds until the next promotion; an entry is due in *wait* seconds.

        A promotion moves entries of one queue, so only entries of the same queue are gathered.
        """
        low, high = EMPTY_LOOK_SECONDS
        if promoted.is_in_vain:
            self._empty_look_seconds = min(max(2 * self._empty_look_seconds, low), high)
            return MIN_GATHER_SECONDS + self._empty_look_seconds
        self._empty_look_seconds = 0.0
        if self.gather == MIN_GATHER_SECONDS:
            several = GATHERED_ENTRIES * self._entry_seconds
            is_fast = is_same and several <= 1.25 * MAX_GATHER_SECONDS
            return (
                min(max(MIN_GATHER_SECONDS, several), MAX_GATHER_SECONDS)
                if is_fast
                else MIN_GATHER_SECONDS
            )
        if not self._is_stream or wait > self.gather:
            return MIN_GATHER_SECONDS
        return self.gather * ceil((now + max(wait, MIN_GATHER_SECONDS)) / self.gather) - now

    def _plan_look_off_duty(self) -> float:
        heard = _wait_with_heartbeats(self.fleet)
        unheard = min(heard, MAX_LOOK_SECONDS)
        if self._is_start_spread:
            jitter = self.uniform(1 - JITTER, 1 + JITTER)
            heard, unheard = heard * jitter, unheard * jitter
        else:  # a fleet may have started, or reconnected, at the same moment
            self._is_start_spread = True
            heard, unheard = self.uniform(0.0, heard), self.uniform(0.0, unheard)
        now = self.monotonic()
        if self._heartbeat_due_at <= now:
            self._heartbeat_due_at = now + min(unheard, self.interval)
        return heard

    def wake_in(self, queue: str, seconds: float) -> None:
        """Note that *queue* has an entry due in *seconds*. Off duty this changes nothing."""
        wake_at = self.monotonic() + seconds
        if self.on_duty and wake_at < self._wake_at:
            self.queue, self._wake_at = queue, wake_at

    def look_now(self, unless_within: float) -> None:
        """Look at the next-due index now, unless the next look comes within *unless_within* s."""
        if self.wait() > unless_within:
            self.queue, self._wake_at = None, self.monotonic()

    @property
    def next_queue(self) -> str | None:
        """The queue to promote from; None where the next-due index is to be looked at."""
        return None if self.monotonic() - self._looked_at >= self._max_look_seconds else self.queue

    @property
    def wakes_at(self) -> float:
        """The time of the next look or promotion, by the process' own clock."""
        return self._wake_at if self.on_duty else min(self._wake_at, self._heartbeat_due_at)

    def wait(self) -> float:
        """Return the seconds until the next look or promotion."""
        return max(0.0, self.wakes_at - self.monotonic())

    def note_reconnect(self) -> None:
        """Spread the next look: a whole fleet may have reconnected at the same moment."""
        self._is_start_spread = False

    # -- errors of one queue, which other dispatchers may not have

    def leave_duty(self) -> bool:
        """Note an error of a queue; return whether this dispatcher leaves the duty."""
        now = self.monotonic()
        if self.fleet == 1 or now < self._no_claim_until:
            return False
        self._off_duty_until, self._no_claim_until = now + OFF_DUTY_SECONDS, now + NO_CLAIM_SECONDS
        self.on_duty = False
        return True

    @property
    def may_take_vacant_duty(self) -> bool:
        """Whether to go on duty when no dispatcher is on duty."""
        return self.monotonic() >= self._off_duty_until

    @property
    def may_take_duty_by_promotion(self) -> bool:
        """Whether promoting an overdue entry puts this dispatcher on duty."""
        return self.monotonic() >= self._no_claim_until


class SkippedQueues:
    """Queues that a dispatcher skips for some time, since its account may not change them.

    The accounts of several apps on one Redis may each have rights to their own queues only.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._until: dict[str, float] = {}

    def add(self, queue: str) -> bool:
        """Skip a queue for :data:`NO_CLAIM_SECONDS`; return whether it was never skipped before."""
        is_new = queue not in self._until
        self._until[queue] = self._monotonic() + NO_CLAIM_SECONDS
        return is_new

    @property
    def is_full(self) -> bool:
        """Whether one call can name no more queues."""
        return len([*self]) >= MAX_SKIPPED_QUEUES

    def discard(self, queue: str) -> None:
        """Skip a queue no more: a promotion from it succeeded."""
        self._until.pop(queue, None)

    def __contains__(self, queue: str) -> bool:
        return self._until.get(queue, 0.0) > self._monotonic()

    def __iter__(self) -> Iterator[str]:
        return (queue for queue in self._until if queue in self)
