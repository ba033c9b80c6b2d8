"""What the scripts are to do to one queue, in plain Python: the model they are compared with.

The first of each list is what runs next. Time is lease time in seconds, moved by hand.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from redis import Redis

from celery_delayq.keys import Keys, Layout
from celery_delayq.lease_store import Counted, Deliveries, Reaped, Reserved, Retried
from celery_delayq.message import Record, task_field
from celery_delayq.replies import Stored


class Scheduled(NamedTuple):
    """An entry: when it is due, in ms since 1970, and what is stored."""

    due: int
    record: Record


class Held(NamedTuple):
    """What stands under one field of a process: a message, or None once a retry has replaced it."""

    step: int
    alone: bool
    message: bytes | None


class Letter(NamedTuple):
    """A dead letter, under the id that it was to get."""

    id: str
    reason: str
    message: bytes


@dataclass
class QueueModel:
    """One queue, the processes that hold messages of it, and what is known of all queues."""

    name: str
    layout: Layout
    now: int = 0
    published: list[bytes] = field(default_factory=list)
    scheduled: dict[str, Scheduled] = field(default_factory=dict)
    ready: dict[int, list[bytes]] = field(default_factory=dict)
    held: dict[str, dict[str, Held]] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    counts: dict[bytes, Deliveries] = field(default_factory=dict)
    suspects: list[tuple[int, bytes]] = field(default_factory=list)
    turn: str | None = None
    dead: list[Letter] = field(default_factory=list)
    done: list[bytes] = field(default_factory=list)
    nonces: dict[str, int] = field(default_factory=dict)
    marker: bool = False
    reaping: int | None = None
    agenda: int | None = None
    registered: bool = False

    # -- publish, promote

    def push(self, step: int, message: bytes) -> None:
        """Publish a message that is ready."""
        self.published.append(message)
        self._push(step, message)

    def _push(self, step: int, message: bytes) -> None:
        self.ready.setdefault(step, []).append(message)
        self.marker = True

    def schedule(self, id: str, due: int, record: Record) -> Stored:
        """Publish a message that is due later, or the same again."""
        if self.entry_of(record.nonce) is not None:
            return "duplicate"
        name = f"{id}\0{record.nonce}" if id in self.scheduled else id
        self.scheduled[name] = Scheduled(due, record)
        self.published.append(record.message)
        self._announce(due)
        return "scheduled"

    def entry_of(self, nonce: str) -> str | None:
        """Return the name of the entry that waits for a message."""
        names = (name for name, one in self.scheduled.items() if one.record.nonce == nonce)
        return next(names, None)

    def _announce(self, due: int) -> None:
        self.registered = True
        self.agenda = due if self.agenda is None else min(self.agenda, due)

    def becomes_due(self, name: str, due: int) -> None:
        """Let the moment of an entry have passed."""
        self.scheduled[name] = self.scheduled[name]._replace(due=due)
        self._announce(due)

    def promote(self, limit: int, now_ms: int) -> int:
        """Move up to *limit* entries that are due; return how many."""
        due = sorted((one.due, name) for name, one in self.scheduled.items() if one.due <= now_ms)
        for _, name in due[:limit]:
            record = self.scheduled.pop(name).record
            self._push(record.priority, record.message)
        self.agenda = min((one.due for one in self.scheduled.values()), default=None)
        return len(due[:limit])

    # -- lease

    def reserve(
        self, who: str, lease: int, nonce: str, limit: int, lists: int, others: int
    ) -> Reserved:
        """Lease up to *limit* messages, or tell those of *nonce* again."""
        mine = self.held.setdefault(who, {})
        names = [f"{nonce}:{place}" for place in range(1, limit + 1)]
        last = self.nonces.get(who, 0)
        room = False
        if int(nonce) <= last:
            told = {
                name: one for name in names if (one := mine.get(name)) and one.message is not None
            }
        else:
            taken: list[Held] = []
            if self.suspects and not mine and not others:
                step, message = self.suspects.pop(0)
                taken = [Held(step, True, message)]
                self.turn = None
            else:
                if self.suspects and self.turn is None:
                    self.turn = who
                room = bool(self.suspects) and self.turn == who
                if not room:
                    taken = list(self._take(limit, lists))
            told = dict(zip(names, taken, strict=False))
            mine.update(told)
        if told:
            self.nonces[who] = max(last, int(nonce))
            self._hold(who, lease)
        filled = [place for place, step in enumerate(self.layout.steps, 1) if self.ready.get(step)]
        self.marker = bool(filled) or (bool(self.suspects) and self.turn is None)
        return Reserved(
            filled[0] if filled else 0,
            any(one.alone for one in told.values()),
            room,
            [(name, one.message or b"", self._counts(one)) for name, one in told.items()],
        )

    def _take(self, limit: int, lists: int) -> Iterator[Held]:
        for step in self.layout.steps[:lists]:
            waiting = self.ready.get(step, [])
            while waiting and limit:
                limit -= 1
                yield Held(step, False, waiting.pop(0))

    def _counts(self, one: Held) -> Deliveries:
        return self.counts.get(one.message or b"", Deliveries())

    def _hold(self, who: str, lease: int) -> None:
        end = self.ends[who] = self.now + lease
        self.reaping = end if self.reaping is None else min(end, self.reaping)

    def beat(self, who: str, lease: int) -> int:
        """Extend a lease; return how much is held."""
        count = len(self.held.get(who, {}))
        if count:
            self._hold(who, lease)
        return count

    def ack(self, who: str, fields: Iterable[str]) -> int:
        """Forget messages; return how many of them were held."""
        there = [one for name in fields if (one := self._drop(who, name))]
        for one in there:
            if one.message is not None:
                self._finish(one.message)
        return len(there)

    def _drop(self, who: str, name: str) -> Held | None:
        return self.held.get(who, {}).pop(name, None)

    def _finish(self, message: bytes) -> None:
        self.done.append(message)
        self.counts.pop(message, None)

    def requeue(
        self, who: str, fields: Sequence[str], *, last: bool, counted: Counted, most: int
    ) -> tuple[int, int]:
        """Put messages back; return how many are ready and how many are dead."""
        moved = buried = 0
        for name in fields if last else reversed(fields):
            one = self._drop(who, name)
            if one is None or one.message is None:
                continue
            count = self._counts(one)
            if counted != "nothing":
                count = count._replace(**{counted: getattr(count, counted) + 1})
                self.counts[one.message] = count
            if counted == "crashed" and most and count.crashed > most:
                self._bury(one.message, f"killed its process {count.crashed} times")
                buried += 1
            else:
                self._put_back(one, one.message, last=last)
                moved += 1
        return moved, buried

    def _put_back(self, one: Held, message: bytes, *, last: bool) -> None:
        self.marker = True
        if one.alone:
            self.suspects.insert(len(self.suspects) if last else 0, (one.step, message))
            return
        waiting = self.ready.setdefault(one.step, [])
        waiting.insert(len(waiting) if last else 0, message)

    def _bury(self, message: bytes, reason: str, id: str | None = None) -> None:
        self.counts.pop(message, None)
        self.dead.append(Letter(id or _digest(message), reason, message))

    def reject(self, who: str, name: str, id: str, reason: str) -> bool:
        """Make a dead letter of a message; False when it is not held."""
        one = self._drop(who, name)
        if one is None or one.message is None:
            return False
        self.registered = True
        self._bury(one.message, reason, id)
        return True

    def retry(
        self, who: str, name: str, id: str, due: int | None, record: Record, *, hand_out: bool
    ) -> Retried:
        """Publish a message in place of another one; *due* is None for what is due already."""
        one = self.held.get(who, {}).get(name)
        if one is None:
            return "gone"
        if one.message is None:
            return "duplicate"
        if due is None and not hand_out:
            return "due"
        if due is None:
            self.push(record.priority, record.message)
        else:
            assert self.schedule(id, due, record) == "scheduled"
        self._finish(one.message)
        self.held[who][name] = one._replace(message=None)
        return "ready" if due is None else "scheduled"

    # -- reap

    def ended(self, who: str) -> bool:
        """Return whether the lease of a process has ended."""
        return who in self.ends and self.ends[who] <= self.now

    def first_to_end(self) -> str | None:
        """Return the process whose lease ends first."""
        return min(self.ends, key=lambda who: (self.ends[who], who), default=None)

    def reap(self, who: str, fields: Iterable[str], most: int) -> Reaped:
        """Take back *fields* of a process whose lease has ended: which it is, is up to Redis."""
        results: Counter[str] = Counter()
        if self.ended(who):
            # The first to run comes last, so that it stands before the others.
            for name in sorted(fields, key=_order, reverse=True):
                one = self._drop(who, name)
                assert one is not None
                if one.message is not None:
                    results[self._take_back(one, one.message, most)] += 1
            if not self.held.get(who):
                del self.ends[who]
                self.nonces.pop(who, None)
            if results["requeued"] or results["suspected"]:
                self.marker = True
        self.reaping = min(self.ends.values(), default=None)
        more = self.reaping is not None and self.reaping <= self.now
        return Reaped(more, results["requeued"], results["suspected"], results["buried"])

    def _take_back(self, one: Held, message: bytes, most: int) -> str:
        count = self._counts(one)
        count = count._replace(reaped=count.reaped + 1)
        if most and count.reaped > most and one.alone:
            self._bury(
                message,
                f"its worker died {count.reaped} times, the last time with nothing else",
            )
            return "buried"
        self.counts[message] = count
        if most and count.reaped >= most:
            self.suspects.append((one.step, message))
            return "suspected"
        self.ready.setdefault(one.step, []).insert(0, message)
        return "requeued"

    # -- to compare

    def state(self) -> dict[str, Any]:
        """Return what :func:`observed` is to return."""
        keys = Keys()
        key = keys.queue(self.name)
        name = self.name.encode()
        due = {one.encode(): entry.due for one, entry in self.scheduled.items()}
        values: dict[str, Any] = {
            keys.agenda: {name: self.agenda} if self.agenda is not None else None,
            keys.queues: {name: self.layout.text.encode()} if self.registered else None,
            keys.reaping: {name: self._minutes(self.reaping)} if self.reaping is not None else None,
            key.due: due,
            key.entries: {one.encode(): e.record.pack() for one, e in self.scheduled.items()},
            key.tasks: {_member(one, entry): 0 for one, entry in self.scheduled.items()},
            key.leases: {who.encode(): self._minutes(end) for who, end in self.ends.items()},
            key.deliveries: {
                _digest(message).encode(): b"%d %d %d" % count
                for message, count in self.counts.items()
            },
            key.suspects: [b"%d\n%b" % one for one in reversed(self.suspects)],
            key.nonces: {who.encode(): b"%d" % n for who, n in self.nonces.items()} or None,
            key.suspect_turn: self.turn.encode() if self.turn is not None else None,
            key.dead: sorted(self.dead),
            key.dead_at: sorted(letter.id for letter in self.dead),
            key.wake: [b""] if self.marker else None,
        }
        for step in self.layout.steps:
            values[keys.ready(self.name, step, self.layout)] = self.ready.get(step, [])[::-1]
        for who, mine in self.held.items():
            values[key.leased(who)] = {one.encode(): _value(held) for one, held in mine.items()}
        return {name: value for name, value in values.items() if value}

    def _minutes(self, end: int) -> int:
        return round((end - self.now) / 60)


def quick_snapshot(client: Redis) -> dict[str, Any]:
    """Return what :func:`tests.support.keyspace.snapshot` does, in three round trips."""
    keys = sorted(client.keys())
    with client.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.type(key)
        kinds = pipe.execute()
        for key, kind in zip(keys, kinds, strict=True):
            if kind == b"hash":
                pipe.hgetall(key)
            elif kind == b"list":
                pipe.lrange(key, 0, -1)
            elif kind == b"zset":
                pipe.zrange(key, 0, -1, withscores=True)
            else:
                pipe.get(key)
        values = pipe.execute()
    return {
        key.decode(): dict(value) if kind == b"zset" else value
        for key, kind, value in zip(keys, kinds, values, strict=True)
    }


def observed(name: str, state: dict[str, Any]) -> dict[str, Any]:
    """Return a snapshot with leases in minutes, in the form of :meth:`QueueModel.state`."""
    key = Keys().queue(name)
    shown = dict(state)
    if key.dead in shown:
        letters = shown[key.dead]
        assert set(letters) == set(shown[key.dead_at])
        shown[key.dead] = sorted(_letter(id, data) for id, data in letters.items())
        shown[key.dead_at] = sorted(letter.id for letter in shown[key.dead])
    return shown


def messages_in(name: str, layout: Layout, state: dict[str, Any]) -> Counter[bytes]:
    """Return each message that a snapshot holds, in whichever state."""
    key = Keys().queue(name)
    found: Counter[bytes] = Counter()
    for where, value in state.items():
        if where in Keys().ready_lists(name, layout):
            found.update(value)
        elif where in (key.entries, key.dead) or where.startswith(key.leased("")):
            found.update(data.partition(b"\n")[2] for data in value.values() if data)
        elif where == key.suspects:
            found.update(data.partition(b"\n")[2] for data in value)
    return found


def _digest(message: bytes) -> str:
    return hashlib.sha1(message, usedforsecurity=False).hexdigest()


def _member(name: str, entry: Scheduled) -> bytes:
    return f"{task_field(entry.record.task)}\0{entry.due:015d}\0{name}".encode()


def _value(held: Held) -> bytes:
    if held.message is None:
        return b""
    return b"%d%b\n%b" % (held.step, b"!" if held.alone else b"", held.message)


def _order(name: str) -> list[int]:
    return [int(part) for part in name.split(":")]


def _letter(id: bytes, data: bytes) -> Letter:
    header, _, message = data.partition(b"\n")
    return Letter(id.partition(b"\0")[0].decode(), header.decode().split(" ", 3)[3], message)
