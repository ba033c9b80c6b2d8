"""What the gateway to Redis answers. No I/O."""

from __future__ import annotations

from typing import Literal, NamedTuple

Stored = Literal["scheduled", "ready", "duplicate"]
Adopted = Literal["scheduled", "ready", "gone"]


#: The letters in which ``schedule.lua`` tells what became of each message.
STATES: dict[str, Stored] = {"s": "scheduled", "r": "ready", "d": "duplicate"}


class Look(NamedTuple):
    """Which queue to look at next and when: *now* in µs, *due* in ms since 1970, by Redis' clock.

    The finer unit is worth half a millisecond of lateness. *reap* are queues with a lease that has
    ended, where that was asked for.
    """

    now: int
    queue: str | None
    due: int | None
    reap: tuple[str, ...] = ()

    @property
    def wait(self) -> float | None:
        """Seconds until then, at least 0; None when nothing is scheduled."""
        return None if self.due is None else max(0, self.due * 1000 - self.now) / 1_000_000


class Promoted(NamedTuple):
    """What one call of ``promote.lua`` did, and where to look next."""

    look: Look
    moved: int
    buried: int


class Held(NamedTuple):
    """Where kombu keeps a message that a worker holds: full key names and the delivery tag."""

    unacked: str
    unacked_index: str
    tag: str


class Sizes(NamedTuple):
    """How much is in each state in one queue; *now* and *first_due* in ms since 1970."""

    now: int
    scheduled: int
    ready: int
    dead: int
    overdue: int
    first_due: int | None


class DeadLetter(NamedTuple):
    """A message that will not run, and why."""

    id: str
    died_ms: int
    due_ms: int
    reason: str
    message: bytes
