"""A fleet of dispatchers in virtual time.

Each has a :class:`PollTimer` of the package. Redis is a model: it runs one call at a time, and each
takes :data:`SERVICE`. ``promote`` and ``next_queue`` treat duty and due entries as the scripts do.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from celery_delayq.dispatch.dispatcher import MAX_PROMOTED
from celery_delayq.dispatch.pacing import PollTimer
from celery_delayq.store.scripting.replies import Look, Promoted

#: Seconds of a call in Redis, of telling one dispatcher that the one on duty has looked, and of the
#: way there and back.
SERVICE = 0.00003
TELLING = 0.000001
ROUND_TRIP = 0.0003

#: Most seconds by which a sleep is too long.
OVERSLEPT = 0.0003

#: ``include/dispatch/duty.lua``: ms of silence after which the one on duty counts as lost.
SILENT = 2500

BEGIN = 1_000.0


@dataclass
class Member:
    """A dispatcher."""

    number: int
    timer: PollTimer
    alive: bool = True
    stopped: bool = False
    #: The time of its next call, as far as known.
    turn: float = float("inf")


@dataclass
class Outcome:
    """The results of a fleet: calls, and seconds by which each entry was late."""

    seconds: float
    calls: int = 0
    #: Number of times that a dispatcher heard that the one on duty has looked.
    told: int = 0
    late: list[float] = field(default_factory=list)
    #: Calls of each member.
    by_member: dict[int, int] = field(default_factory=dict)

    @property
    def calls_an_entry(self) -> float:
        """Script calls for each promoted entry."""
        return self.calls / max(1, len(self.late))

    @property
    def calls_a_second(self) -> float:
        """Script calls a second, of all dispatchers."""
        return self.calls / self.seconds

    @property
    def load(self) -> float:
        """The share of time in which Redis works for dispatchers."""
        return (self.calls * SERVICE + self.told * TELLING) / self.seconds

    def percentile(self, part: float) -> float:
        """Return the highest lateness (seconds) of *part* of the entries."""
        late = sorted(self.late)
        return late[min(int(part * len(late)), len(late) - 1)] if late else 0.0


class Fleet:
    """Dispatchers and entries.

    Parameters
    ----------
    size : int
        Number of dispatchers.
    dues : Iterable[float]
        Dues of the entries, in seconds from the begin.
    queues : int
        Number of queues that get the entries in turn.
    apart : float
        Seconds within which the dispatchers start.
    """

    def __init__(
        self,
        size: int,
        dues: Iterable[float],
        *,
        queues: int = 1,
        apart: float = 1.0,
        seed: int = 7,
    ) -> None:
        self._random = random.Random(seed)
        self.now = BEGIN
        self._free_at = BEGIN
        self._due: dict[str, list[int]] = {}
        for n, due in enumerate(sorted(dues)):
            self._due.setdefault(f"q{n % queues}", []).append(int((BEGIN + due) * 1000))
        self._index = [(dues[0], queue) for queue, dues in self._due.items()]
        heapq.heapify(self._index)
        self._duty: Member | None = None
        self._duty_at = 0
        self._alive = 0
        self.members: list[Member] = []
        #: The time of each member's next call.
        self._turns: list[tuple[float, int, Member]] = []
        self.outcome = Outcome(0.0)
        for _ in range(size):
            self.join(self._random.uniform(0.0, apart))

    def join(self, after: float = 0.0) -> Member:
        """Start a dispatcher."""
        timer = PollTimer(1.0, lambda: self.now, self._random.uniform)
        member = Member(len(self.members), timer)
        self.members.append(member)
        self._alive += 1
        self._call(member, self.now + after)
        return member

    @property
    def on_duty(self) -> Member | None:
        """The dispatcher that Redis has on duty."""
        return self._duty

    def kill(self, members: Iterable[Member]) -> None:
        """Kill dispatchers."""
        for member in members:
            self._alive -= member.alive
            member.alive = False

    def stop(self, members: Iterable[Member]) -> None:
        """Stop dispatchers, as SIGSTOP does: they still count."""
        for member in members:
            member.stopped = True

    def run(self, seconds: float) -> Outcome:
        """Let *seconds* pass; return the results in this time."""
        outcome = self.outcome = Outcome(seconds)
        end = self.now + seconds
        while self._turns and self._turns[0][0] < end:
            at, _, member = heapq.heappop(self._turns)
            if at != member.turn or not member.alive or member.stopped:
                continue
            self.now = at
            if (wait := member.timer.wait()) > 1e-9:  # it has heard the one on duty meanwhile
                self._call(member, at + wait)
            else:
                self._turn(member)
        self.now = end
        return outcome

    def _call(self, member: Member, at: float) -> None:
        member.turn = at
        heapq.heappush(self._turns, (at, member.number, member))

    def _turn(self, member: Member) -> None:
        timer = member.timer
        queue = timer.next_queue
        promoted: Promoted | None
        begin = max(self.now + ROUND_TRIP / 2, self._free_at)
        self._free_at = begin + SERVICE
        self.outcome.calls += 1
        self.outcome.by_member[member.number] = self.outcome.by_member.get(member.number, 0) + 1
        if queue is None:
            fleet = self._alive
            is_on_duty = self._takes_duty(member, begin, wins=fleet == 1)
            look, promoted = self._look(begin)._replace(on_duty=is_on_duty, fleet=fleet), None
            if is_on_duty and fleet > 1:
                self._tell(member)
        else:
            moved = self._promote(queue, begin)
            look = self._look(begin)
            look = look._replace(on_duty=self._takes_duty(member, begin, wins=moved > 0))
            promoted = Promoted(look, moved, 0)
        self.now = self._free_at + ROUND_TRIP / 2
        timer.note_look(look, promoted)
        wait = timer.wait()
        self._call(member, self.now + wait + (self._random.uniform(0, OVERSLEPT) if wait else 0))

    def _tell(self, on_duty: Member) -> None:
        """Let all others hear that the one on duty has looked."""
        for member in self.members:
            if member.alive and member is not on_duty:
                self._free_at += TELLING
                self.outcome.told += 1
                if member.stopped:
                    continue
                member.timer.note_heartbeat()
                at = self.now + member.timer.wait()
                if at < member.turn:
                    self._call(member, at)

    def _takes_duty(self, member: Member, now: float, *, wins: bool) -> bool:
        ms = int(now * 1000)
        silent = ms - self._duty_at
        if self._duty not in (None, member) and silent < SILENT and not wins:
            return False
        if self._duty is not member or silent >= 500:
            self._duty, self._duty_at = member, ms
        return True

    def _look(self, now: float) -> Look:
        due, queue = self._index[0] if self._index else (None, None)
        return Look(int(now * 1_000_000), queue, due)

    def _promote(self, queue: str, now: float) -> int:
        dues, ms = self._due[queue], int(now * 1000)
        moved = 0
        while dues and moved < MAX_PROMOTED and dues[0] <= ms:
            self.outcome.late.append(now - dues.pop(0) / 1000)
            moved += 1
        if moved:
            self._index = [each for each in self._index if each[1] != queue]
            if dues:
                self._index.append((dues[0], queue))
            heapq.heapify(self._index)
        return moved


def steady(rate: float, seconds: float, seed: int = 7) -> list[float]:
    """Return random dues, *rate* a second."""
    chance = random.Random(seed)
    found, at = [], 0.0
    while (at := at + chance.expovariate(rate)) < seconds:
        found.append(at)
    return found
