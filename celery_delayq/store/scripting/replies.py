"""Replies of scripts. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, get_args

from celery_delayq.model.publish_outcome import PublishOutcome, Put, Stored
from celery_delayq.model.script_values import to_text
from celery_delayq.store.scripting.calls import EntriesCall

Adopted = Literal["scheduled", "ready", "gone"]

#: The codes of ``schedule/add.lua`` for the outcome of each message. After a capital code comes the
#: id of another message.
STATES: dict[str, Stored] = {
    "s": "scheduled",
    "r": "ready",
    "d": "duplicate",
    "f": "full",
    "S": "replaced",
    "R": "replaced",
    "K": "kept",
    "E": "conflict",
    "O": "superseded",
}


#: The outcomes without another message. Most outcomes are such.
_PLAIN_REPLIES = {code: Put(state) for code, state in STATES.items() if code.islower()}


class EntriesReply(NamedTuple):
    """The reply of ``schedule/add.lua``: Redis' clock in ms, and the outcome of each message.

    *replaced* has the record of each replaced entry, by the index of the new entry; ``b""`` if the
    replaced task was ready.
    """

    now: int
    puts: list[Put]
    replaced: dict[int, bytes]

    @classmethod
    def read(cls, reply: Sequence[Any]) -> EntriesReply:
        """Read the reply."""
        now, found, *rest = reply
        now, codes = int(now), found.decode()
        if not rest:
            return cls(now, [_PLAIN_REPLIES[code] for code in codes], {})
        others = iter(rest)
        puts = [
            _PLAIN_REPLIES.get(code)
            or Put(STATES[code], next(others).decode("utf-8", "surrogateescape"))
            for code in codes
        ]
        places = (place for place, code in enumerate(codes) if code in "SR")
        return cls(now, puts, {place: next(others) for place in places})

    def outcomes(self, call: EntriesCall) -> Iterator[PublishOutcome]:
        """Yield the outcome of each message of the call."""
        messages = zip(call.ids, self.puts, call.records, strict=True)
        for place, (id, put, record) in enumerate(messages):
            yield PublishOutcome(id, put, call.queue, record, self.replaced.get(place, b""))


def cut(sizes: bytes, text: bytes) -> list[Any]:
    """Split *text* into parts of the lengths *sizes*, separated by spaces; length -1 gives None."""
    found: list[bytes | None] = []
    begin = 0
    for size in map(int, sizes.split()):
        found.append(None if size < 0 else text[begin : begin + size])
        begin += max(size, 0)
    return found


def answered(replies: list[Any]) -> list[Any]:
    """Return *replies*. Raises the first refusal among them."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


def in_threes(parts: list[Any]) -> Iterator[tuple[Any, Any, Any]]:
    """Return an iterator over parts, three at a time."""
    return zip(*[iter(parts)] * 3, strict=True)


ReadyLook = Literal["nobody", "another", "own turn"]

#: Who looks at the ready lists, in the order of the codes of ``dispatch/next_queue.lua``.
READY_LOOKS: tuple[ReadyLook, ...] = get_args(ReadyLook)


class Look(NamedTuple):
    """The queue to look at next. *now* is in µs, *due* in ms since 1970, by Redis' clock.

    *now* in µs instead of ms makes entries half a millisecond less late on average.

    *reclaim_expired* are queues with an ended lease. *on_duty* tells whether the asking dispatcher
    is on duty (:mod:`celery_delayq.dispatch.pacing`). *fleet* is the number of listening
    dispatchers, 0 if Redis does not tell. *queues* is the number of registered queues. *ready*
    tells who looks at the ready lists. Each is None or empty if the script does not return it.
    """

    now: int
    queue: str | None
    due: int | None
    reclaim_expired: tuple[str, ...] = ()
    on_duty: bool | None = None
    fleet: int | None = None
    queues: int | None = None
    ready: ReadyLook = "nobody"

    @property
    def wait(self) -> float | None:
        """Seconds until *due*, at least 0; None if no entry is scheduled."""
        return None if self.due is None else max(0, self.due * 1000 - self.now) / 1_000_000

    def is_overdue(self, seconds: float) -> bool:
        """Return whether *due* was at least *seconds* ago."""
        return self.due is not None and self.now - self.due * 1000 >= seconds * 1_000_000


#: Later than all dates, in ms since 1970.
MAX_TIME_MS = 10**15


def read_time(score: bytes) -> int:
    """Return a score as ms since 1970. Other code may have written an infinite score."""
    return int(min(max(float(score), 0.0), MAX_TIME_MS))


#: A wake-up: µs until the next entry is due, and its queue.
_WAKE_UP = re.compile(rb"(-?\d{1,20}) (.+)", re.DOTALL)


def read_wake_up(data: bytes) -> tuple[str, float] | None:
    """Return the queue of a wake-up, and the seconds until its next entry is due.

    None for any other text: other clients may publish anything.
    """
    found = _WAKE_UP.fullmatch(data)
    try:
        return found and (found[2].decode(), int(found[1]) / 1_000_000)
    except UnicodeDecodeError:
        return None


class Promoted(NamedTuple):
    """The reply of ``dispatch/promote.lua``: numbers of entries, and the next queue to look at."""

    look: Look
    moved: int
    dead_lettered: int

    @property
    def is_in_vain(self) -> bool:
        """Whether no entry was due."""
        return not (self.moved or self.dead_lettered)


class Unacked(NamedTuple):
    """The place of a stock worker's message in kombu: full key names and the delivery tag."""

    unacked: str
    unacked_index: str
    tag: str | bytes


class Sizes(NamedTuple):
    """Part of the reply of ``schedule/counts.lua``: numbers of messages of one queue, by state.

    In ms since 1970: *now* is Redis' clock, *first_due* the due of the first entry, and
    *oldest_ready* the earliest due of the messages that are taken next. *leasing* is the number of
    processes that extend their leases. *worker_ids* are up to 1,000 processes with a lease.
    """

    now: int
    scheduled: int
    ready: int
    dead: int
    overdue: int
    first_due: int | None
    paused: int
    held: int = 0
    oldest_ready: int | None = None
    leasing: int = 0
    worker_ids: tuple[str, ...] = ()

    @classmethod
    def read(cls, line: bytes) -> Sizes:
        """Read the first part of the reply."""
        now, scheduled, overdue, first, dead, ready, *rest = line.split()
        paused, held, oldest, leasing, *ids = rest
        first_due, oldest_ready = (
            None if due == b"-" else read_time(due) for due in (first, oldest)
        )
        return cls(
            *(int(now), int(scheduled), int(ready), int(dead), int(overdue), first_due),
            *(
                int(paused),
                int(held),
                oldest_ready,
                int(leasing),
                tuple(map(to_text, ids)),
            ),
        )

    def in_paused_queue(self) -> Sizes:
        """Return the sizes of a paused queue: its due entries wait for the pause, not overdue."""
        return self._replace(paused=self.paused + self.overdue, overdue=0)


def members_with_scores(found: Sequence[Any]) -> list[tuple[bytes, float]]:
    """Return the members of a reply with scores, and their scores, in RESP 2 or 3."""
    pairs = found if found and isinstance(found[0], list) else zip(*[iter(found)] * 2, strict=True)
    return [(member, float(score)) for member, score in pairs]
