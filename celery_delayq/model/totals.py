"""The counters of a queue, and those of ticks, as Redis keeps them. No I/O.

A script changes messages and counters in one step (``include/totals.lua``). So the death of a
process or a lost reply changes no counter. At every moment ::

    accepted + replayed = acked + cancelled + replaced + moved + purged + taken
                          + dead_lettered - aside + present

where *present* are the scheduled, paused, held, ready and leased messages of the queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

#: Kinds of reasons for which messages become dead letters.
REASONS = (
    *("failed", "rejected", "unknown_task", "undecodable"),
    *("crashed", "skipped", "unbound", "corrupt"),
)

#: Kinds by the beginning of a reason's text. Scripts count their own reasons themselves. Any other
#: text comes from a task that raised ``Reject``.
_REASON_BEGINNINGS = {
    "failed: ": "failed",
    "failed after ": "failed",
    "unknown task ": "unknown_task",
    "undecodable message": "undecodable",
    "no queue is bound to ": "unbound",
    "skipped: ": "skipped",
}

#: Outcomes of a tick.
OUTCOMES = ("scheduled", "overlap", "duplicate")

#: Prefix of the fields of reasons in the hash.
_DEAD_PREFIX = "dead:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Counters of the messages of one queue since *epoch*. Counters only grow.

    Attributes
    ----------
    epoch : str
        When counting began, in µs since 1970 by Redis' clock; "" before the first message. Another
        value means that the counters were set to 0: keys were deleted, or Redis has lost its data.
    accepted : int
        Messages that entered the queue: published, imported or fired. Messages of stock producers
        count when they are first leased.
    promoted : int
        Moved from scheduled to ready.
    retried : int
        Replaced by a retry, in this or another queue.
    redelivered : int
        Back in the ready list after a lease: requeued, or reclaimed because the worker ended.
    replayed : int
        Dead letters that are scheduled or ready again in this queue.
    acked : int
        Acknowledged; a message that was replaced by its retry does not count.
    cancelled : int
        Cancelled; a ready message counts when a worker fetches and drops it.
    replaced : int
        Replaced by another message with their unique key; ready messages as for *cancelled*.
    moved : int
        Replaced by a retry in another queue.
    purged : int
        Purged, or deleted with their queue.
    taken : int
        Taken from the ready lists by others, such as stock workers.
    dead_lettered : Mapping[str, int]
        Dead letters by kind of reason; every one of :data:`REASONS` is a key.
    aside : int
        Those of *dead_lettered* that were not present: acknowledged before the failure, or without
        a queue.
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
    def counts(self) -> dict[str, int]:
        """The counters by name, without *dead_lettered*."""
        return {name: getattr(self, name) for name in COUNTERS}

    @classmethod
    def read(cls, stored: Mapping[bytes, bytes]) -> Totals:
        """Read the hash ``{queue}:totals``; a field that is no number counts as 0."""
        counts = {name: _number(stored.get(name.encode())) for name in COUNTERS}
        # The field "pushed" counts messages that were published to run at once, with one HINCRBY.
        counts["accepted"] += _number(stored.get(b"pushed"))
        dead = {
            reason: _number(stored.get(f"{_DEAD_PREFIX}{reason}".encode())) for reason in REASONS
        }
        return cls(epoch=_text(stored.get(b"epoch")), dead_lettered=dead, **counts)


#: Names of the counters of :class:`Totals`, without *dead_lettered*.
COUNTERS = tuple(
    each.name for each in fields(Totals) if each.name not in ("epoch", "dead_lettered")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TickTotals:
    """Counters of the ticks of periodic entries since *epoch*, by outcome.

    Outcomes are ``scheduled``, ``overlap`` (dropped because the task of an earlier tick waits or
    runs) and ``duplicate``.
    """

    epoch: str = ""
    outcomes: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))

    @classmethod
    def read(cls, stored: Mapping[bytes, bytes]) -> TickTotals:
        """Read the hash ``delayq:ticks``."""
        outcomes = {name: _number(stored.get(name.encode())) for name in OUTCOMES}
        return cls(epoch=_text(stored.get(b"epoch")), outcomes=outcomes)


def kind_of(reason: str) -> str:
    """Return the kind, one of :data:`REASONS`, of the text of a reason."""
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
