"""The counters of a queue, and those of ticks, as Redis keeps them. No I/O.

The scripts count what they do in the same step (``include/totals.lua``), so a process that dies
or a lost reply changes no number. At every moment ::

    accepted + replayed = gone + present

where *present* are the scheduled (paused ones too), ready and leased messages of the queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

#: Why messages become dead letters.
REASONS = (
    *("failed", "rejected", "unknown_task", "undecodable"),
    *("crashed", "skipped", "unbound", "corrupt"),
)

#: How the texts of reasons begin, beside those that scripts write themselves. Other texts are those
#: of tasks that raise ``Reject``.
_REASON_BEGINNINGS = {
    "failed: ": "failed",
    "failed after ": "failed",
    "unknown task ": "unknown_task",
    "undecodable message": "undecodable",
    "no queue is bound to ": "unbound",
    "skipped: ": "skipped",
}

#: What may become of a tick.
OUTCOMES = ("scheduled", "overlap", "duplicate")

#: What comes before a reason in the hash.
_DEAD_PREFIX = "dead:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What has become of the messages of one queue since *epoch*. Counters only grow.

    Attributes
    ----------
    epoch : str
        Microseconds since 1970 by Redis' clock when counting began, "" before that. Another value
        says that the counters began anew: the keys were deleted, or Redis has lost its data.
    accepted : int
        Messages that came into the queue: published, imported, fired, and those of stock producers
        when they are first leased.
    promoted : int
        Moved from scheduled to ready.
    retried : int
        Replaced by their retry, in this or another queue.
    redelivered : int
        Back in the ready list after a lease: requeued, or their worker ended.
    replayed : int
        Dead letters that are scheduled or ready again in this queue.
    acked : int
        Finished; a message that its retry has replaced does not count.
    cancelled : int
        Cancelled; a ready one counts when its turn comes and it is dropped.
    replaced : int
        Gone since another message has their unique key; a ready one as for *cancelled*.
    moved : int
        Gone to another queue by their retry.
    purged : int
        Purged, or gone with their queue.
    taken : int
        Taken from the ready lists by others, such as stock workers.
    dead_lettered : Mapping[str, int]
        By reason, one of :data:`REASONS`; all are there.
    aside : int
        How many of *dead_lettered* were not present then: acknowledged before they failed, or for
        no queue.
    """

    epoch: str = ""
    accepted: int = 0
    promoted: int = 0
    retried: int = 0
    redelivered: int = 0
    replayed: int = 0
    acked: int = 0
    cancelled: int = 0
    replaced: int = 0
    moved: int = 0
    purged: int = 0
    taken: int = 0
    dead_lettered: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    aside: int = 0

    @property
    def gone(self) -> int:
        """How many messages have left the queue."""
        left = self.acked + self.cancelled + self.replaced + self.moved + self.purged + self.taken
        return left + sum(self.dead_lettered.values()) - self.aside

    @property
    def present(self) -> int:
        """How many messages are scheduled, ready or leased by these counters."""
        return self.accepted + self.replayed - self.gone

    @property
    def counts(self) -> dict[str, int]:
        """The counters by name, but for those by reason."""
        return {name: getattr(self, name) for name in COUNTERS}

    @classmethod
    def read(cls, stored: Mapping[bytes, bytes]) -> Totals:
        """Read the hash ``{queue}:totals``; a field that is no number counts as 0."""
        counts = {name: _number(stored.get(name.encode())) for name in COUNTERS}
        # Published to run at once: one HINCRBY counts it as accepted and as ready.
        counts["accepted"] += _number(stored.get(b"pushed"))
        dead = {
            reason: _number(stored.get(f"{_DEAD_PREFIX}{reason}".encode())) for reason in REASONS
        }
        return cls(epoch=_text(stored.get(b"epoch")), dead_lettered=dead, **counts)


#: The counters of :class:`Totals` by name, but for those by reason.
COUNTERS = tuple(
    each.name for each in fields(Totals) if each.name not in ("epoch", "dead_lettered")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TickTotals:
    """What has become of the ticks of periodic entries since *epoch*, by outcome.

    ``scheduled``, ``overlap`` (dropped since the task of an earlier tick waits or runs),
    ``duplicate``.
    """

    epoch: str = ""
    outcomes: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))

    @classmethod
    def read(cls, stored: Mapping[bytes, bytes]) -> TickTotals:
        """Read the hash ``delayq:ticks``."""
        outcomes = {name: _number(stored.get(name.encode())) for name in OUTCOMES}
        return cls(epoch=_text(stored.get(b"epoch")), outcomes=outcomes)


def kind_of(reason: str) -> str:
    """Return which of :data:`REASONS` counts a dead letter, by the text of its reason."""
    return next(
        (kind for begin, kind in _REASON_BEGINNINGS.items() if reason.startswith(begin)), "rejected"
    )


def _number(value: bytes | None) -> int:
    try:
        return int(value or 0)
    except ValueError:
        return 0


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")
