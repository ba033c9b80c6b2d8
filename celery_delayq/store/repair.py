"""Finds and repairs drift between our keys in Redis, and gives messages back to stock.

Each script checks one batch. With *repair*, the same script repairs the drift that it finds, so
that repairing is safe while workers run.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha1
from itertools import chain
from typing import Any, NamedTuple, cast
from uuid import uuid4

from celery_delayq.errors import CommandRefused
from celery_delayq.model.delivery import split_leased
from celery_delayq.model.envelope import PROPERTY, Record, due_of_eta
from celery_delayq.model.names import QUEUE_KEYS
from celery_delayq.model.script_values import StatusCode, to_bytes, to_text
from celery_delayq.store.keys import Layout, queue_name
from celery_delayq.store.scan import PAGE_MESSAGES, ScanStore
from celery_delayq.store.scripting.runner import ScriptRunner, StorePart
from celery_delayq.utils import foreign
from celery_delayq.utils.portions import batches
from celery_delayq.utils.text import is_utf8

#: Approximate number of members that one script call checks.
CALL_MEMBERS = 50

#: Most ids that are reported for each kind of drift (``include/repair/report.lua``).
MAX_EXAMPLES = 3

#: Number of keys that one call of ``SCAN`` reads, and of members that ``HSCAN`` and ``ZSCAN`` read.
SCAN_COUNT = 500

_NAMES = "|".join(QUEUE_KEYS - {"answer", "leased", "turning", "wake", "quarantine_turn"})
_OWN_KEY = re.compile(rf"\{{(.*)\}}:(?:(?:{_NAMES})|leased:(.+))", re.DOTALL)


class Found(NamedTuple):
    """One kind of drift in a batch. *examples* are a few ids."""

    kind: str
    number: int
    repaired: int
    examples: list[str]


class Batch(NamedTuple):
    """The findings of one call.

    The next call first checks the names *unchecked*, for which this call had no room. Then it
    continues at *cursor*, which is 0 at the end.
    """

    cursor: int
    looked: int
    found: list[Found]
    unchecked: Sequence[bytes] = ()

    @classmethod
    def read(cls, reply: Sequence[Any]) -> Batch:
        """Read the reply of a script (``include/repair/report.lua``)."""
        found = [
            Found(kind.decode(), number, repaired, [_text(id) for id in ids])
            for kind, number, repaired, *ids in reply[3:]
        ]
        return cls(int(reply[0]), int(reply[1]), found, reply[2])


class StockMessage(NamedTuple):
    """An entry as it was read, and the message for stock workers that replaces it."""

    name: str
    score: float
    record: bytes
    message: bytes


class RepairPart(StorePart):
    """A part of the store that finds and repairs drift."""

    def __init__(self, runner: ScriptRunner) -> None:
        super().__init__(runner)
        self._scan = ScanStore(runner)

    def _page(
        self, script: str, queue: str | None, cursor: int, repair: bool, *first: str | int
    ) -> Batch:
        """Check a batch of a key from a cursor on. ARGV begin with *first*."""
        return self._look(script, queue, [*first, cursor, CALL_MEMBERS, int(repair)])

    def _look(self, name: str, queue: str | None, args: Sequence[Any], **keys: Any) -> Batch:
        """Check a batch of a key, in several calls if there is much to read."""
        first = part = Batch.read(self._run(name, queue, args, **keys))
        found, looked = first.found, first.looked
        for _ in first.unchecked:  # each call checks at least one name
            if not part.unchecked:
                break
            part = Batch.read(self._run(name, queue, [*args, *part.unchecked], **keys))
            found, looked = found + part.found, looked + part.looked
        return Batch(first.cursor, looked, found)


class RepairStore(RepairPart):
    """The part of the store for drift between keys."""

    # -- queues and processes

    def worker_ids_by_queue(self, queue: str | None = None) -> dict[str, set[str]]:
        """Return the queues that have keys of ours, with the worker ids that have leased messages.

        Reads the whole database once (SCAN). With *queue*, only that queue is returned.
        """
        holders: dict[str, set[str]] = {}
        prefix = self._keys.prefix
        pattern = f"{_literally(prefix)}{{{'*' if queue is None else _literally(queue)}}}:*"
        for key in self._runner.client.scan_iter(pattern, count=SCAN_COUNT):
            match = _OWN_KEY.fullmatch(to_text(key)[len(prefix) :])
            # Names of queues are UTF-8. Worker ids may be any bytes.
            if match and queue in (None, match[1]) and is_utf8(match[1]):
                worker_ids = [match[2]] if match[2] is not None else []
                holders.setdefault(match[1], set()).update(worker_ids)
        return holders

    def indexed_queues(self) -> set[str]:
        """Return the queues in the next-due index or the index of leases."""
        indexes = (self._keys.next_due, self._keys.lease_ends)
        members = chain.from_iterable(
            self._runner.client.zscan_iter(key, count=SCAN_COUNT) for key in indexes
        )
        # Dispatchers remove other names.
        return {queue for name, _ in members if (queue := queue_name(name))}

    def worker_ids_of(self, queue: str) -> set[str]:
        """Return the worker ids that have a lease on a queue, or had a lease recently."""
        key, client = self._keys.queue(queue), self._runner.client
        found = chain(
            client.zscan_iter(key.leases, count=SCAN_COUNT),
            client.hscan_iter(key.request_numbers, count=SCAN_COUNT),
        )
        return {to_text(name) for name, _ in found}

    def key_sizes(self, queue: str) -> list[int]:
        """Return the numbers of members to check, one for each key, in no fixed order."""
        key = self._keys.queue(queue)
        with self._runner.client.pipeline(transaction=False) as pipe:
            for zset in (key.due, key.tasks, key.dead_at, key.paused_due, key.held, key.lanes):
                pipe.zcard(zset)
            for hash_ in (key.entries, key.dead, key.ready_index, key.leased_index):
                pipe.hlen(hash_)
            # A key of a wrong type is reported by its own check.
            replies = pipe.execute(raise_on_error=False)
        return [reply for reply in replies if isinstance(reply, int)]

    # -- drift

    def check_index(self, queue: str, cursor: int, *, repair: bool) -> Batch:
        """Check a batch of the index by task. Do this before the records, which may get their due
        times from the index.
        """
        return self._page("repair/index", queue, cursor, repair, queue)

    def check_entries(self, queue: str, cursor: int, *, repair: bool) -> Batch:
        """Check a batch of the records.

        A record that is not in the schedule is due at the ETA of its message; without an ETA, now.
        """
        args = [cursor, CALL_MEMBERS, int(repair)]
        next_cursor, looked, lost, *rest = self._run("repair/entries", queue, args)
        batch = Batch.read([next_cursor, looked, [], *rest])
        if lost and repair:
            hash_ = self._keys.queue(queue).entries
            records = self._scan.values(hash_, lost)
            batch.found.extend(
                self.check_schedule(queue, dict(zip(lost, records, strict=True))).found
            )
        elif lost:
            ids = [_text(id) for id in lost]
            batch.found.append(Found("unscheduled", len(ids), 0, ids[:MAX_EXAMPLES]))
        return batch

    def check_schedule(self, queue: str, records: Mapping[bytes, bytes | None]) -> Batch:
        """Put records that are not in the schedule back into it, by the ETAs of their messages."""
        args: list[Any] = [queue]
        for id, record in records.items():
            args += id, _due_ms(record)
        return self._look("repair/schedule", queue, args)

    def check_due(self, queue: str, cursor: int, *, repair: bool) -> Batch:
        """Check a batch of the schedule."""
        return self._page("repair/due", queue, cursor, repair, queue)

    def check_dead_letters(self, queue: str, cursor: int, *, repair: bool) -> Batch:
        """Check a batch of the dead letters."""
        return self._page("repair/dead_letters", queue, cursor, repair, 1)

    def check_death_times(self, queue: str, cursor: int, *, repair: bool) -> Batch:
        """Check a batch of the dead letters' times of death."""
        return self._page("repair/dead_letters", queue, cursor, repair, 2)

    def periodic_size(self) -> int:
        """Return the number of periodic entries to check; 0 for a key of a wrong type."""
        try:
            return cast(int, self._runner.client.hlen(self._keys.periodic))
        except CommandRefused:
            return 0

    def check_periodic(self, _: str, cursor: int, *, repair: bool) -> Batch:
        """Check a batch of the periodic entries, which belong to no queue."""
        return self._page("repair/periodic", None, cursor, repair)

    def check_leases(
        self, queue: str, worker_ids: Sequence[str], lease: float, *, repair: bool
    ) -> Batch:
        """Check the leases of some processes on a queue.

        Parameters
        ----------
        lease : float
            Seconds of the lease that a process without a lease gets.
        """
        leased = [*map(self._keys.queue(queue).leased, worker_ids)]
        args = [queue, int(repair), int(lease * 1000), *map(to_bytes, worker_ids)]
        return self._look("repair/leases", queue, args, more=leased)

    def forget_empty_leases(self, queue: str, worker_ids: Sequence[str]) -> None:
        """Delete the leases of those given processes that have no leased message."""
        leased = [*map(self._keys.queue(queue).leased, worker_ids)]
        args = [queue, *map(to_bytes, worker_ids)]
        self._run("leases/forget_empty", queue, args, more=leased)

    def check_queue(self, queue: str, layout: Layout, deferred: float, *, repair: bool) -> Batch:
        """Check the entries of a queue in the next-due index and the registry.

        The planned look at the queue may be up to *deferred* seconds late.
        """
        args = [queue, layout.text, int(repair), int(deferred * 1000)]
        return self._look("repair/queue", queue, args)

    # -- counts of deliveries, after a purge

    def forget_counts(self, queue: str, layout: Layout) -> None:
        """Delete the counts of deliveries whose messages are gone, for example after a purge."""
        deliveries = self._keys.queue(queue).deliveries
        stale = dict(self._runner.client.hscan_iter(deliveries, count=SCAN_COUNT))
        # A message that is put back during the first reading is found by the second one.
        for _ in range(2):
            if stale:
                there = self._digests(queue, layout)
                stale = {digest: text for digest, text in stale.items() if digest not in there}
        for pairs in batches(stale.items(), CALL_MEMBERS):
            self._run("leases/forget_counts", queue, chain.from_iterable(pairs))

    def _digests(self, queue: str, layout: Layout) -> set[bytes]:
        """Return the digests of all messages that are ready, quarantined or leased.

        A message that is leased meanwhile is among them. One that is put back meanwhile may not be.
        """
        key = self._keys.queue(queue)
        found: set[bytes] = set()
        for ready in self._keys.ready_lists(queue, layout):
            found.update(map(_digest, self._in_list(ready)))
        for item in self._in_list(key.quarantined):
            found.add(_digest(split_leased(item)[1]))
        for name in self.worker_ids_of(queue):
            for _, value in self._scan.fields(key.leased(name)):
                found.add(_digest(split_leased(value)[1]))
        return found

    def _in_list(self, key: str) -> Iterator[bytes]:
        """Yield the items of a list. Each item that stays in the list comes at least once."""
        parts = self._scan.messages(key, 0, sys.maxsize, PAGE_MESSAGES, newest=True)
        return chain.from_iterable(parts)

    # -- migration to stock

    def lengths(self, queue: str, names: Sequence[str]) -> list[int]:
        """Return the size, in bytes, of each entry's record."""
        hash_ = self._keys.queue(queue).entries
        with self._runner.client.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.hstrlen(hash_, to_bytes(name))
            return cast("list[int]", pipe.execute())

    def scheduled(
        self, queue: str, names: Sequence[str]
    ) -> list[tuple[str, float | None, bytes | None]]:
        """Return name, score and record of entries at one moment; None for a missing value."""
        key, members = self._keys.queue(queue), [to_bytes(name) for name in names]
        with self._runner.client.pipeline(transaction=True) as pipe:
            pipe.zmscore(key.due, members)
            pipe.hmget(key.entries, members)
            scores, records = pipe.execute()
        return [*zip(names, scores, records, strict=True)]

    def give_back(
        self, queue: str, layout: Layout, some: Sequence[StockMessage], token: str | None = None
    ) -> list[StatusCode]:
        """Push messages to the ready lists in place of unchanged entries.

        Returns
        -------
        list[StatusCode]
            ``d`` for done, ``c`` for an entry that was replaced or moved meanwhile, ``u`` for an
            entry that is gone. For a minute, a repeated call with the same *token* changes nothing
            and returns the same.
        """
        call = self._new_call(
            "migration/give_back", queue, [queue], layout=layout, answer=token or uuid4().hex
        )
        first = len(call.keys) - len(layout.steps) + 1
        for name, score, record, message in some:
            step = Record.unpack(record).priority
            place = layout.steps.index(step) if step in layout.steps else 0
            call.args += to_bytes(name), repr(score), record, message, first + place
        return cast("list[StatusCode]", list(self._runner.run(call).decode()))

    def quarantined(self, queue: str) -> int:
        """Return the number of quarantined messages."""
        return cast(int, self._runner.client.llen(self._keys.queue(queue).quarantined))

    def release_quarantined(self, queue: str, layout: Layout) -> tuple[int, int]:
        """Put up to :data:`CALL_MEMBERS` quarantined messages back into their ready lists.

        Return the numbers of messages put back and of messages that became dead letters.
        """
        args = [CALL_MEMBERS, *layout.steps]
        moved, dead_lettered = self._run("leases/release_quarantined", queue, args, layout=layout)
        return moved, dead_lettered

    def claimed_seconds(self, worker_id: str) -> float | None:
        """Return for how many seconds the claim of a worker id still holds, 0 or more; None if its
        process has ended, or has been silent for three times its lease.

        The claim expires by Redis' clock. The end of a lease does not tell whether the process
        runs: lease time stands still while no dispatcher calls.
        """
        remaining_ms = cast(int, self._runner.client.pttl(self._keys.worker_id(worker_id)))
        return None if remaining_ms == -2 else max(0, remaining_ms) / 1000


def _literally(text: str) -> str:
    """Return the glob pattern that matches only *text*."""
    return re.sub(r"([\\*?\[\]])", r"\\\1", text)


def _digest(message: bytes) -> bytes:
    return sha1(message, usedforsecurity=False).hexdigest().encode()


def _due_ms(record: bytes | None) -> int | str:
    """Return the ETA of an entry's message in ms; "" for a message without an ETA."""
    try:
        message = foreign.loads(Record.unpack(record or b"").message)
        return due_of_eta(message["properties"][PROPERTY]["eta"]).ms
    except (ValueError, KeyError, TypeError):
        return ""


def _text(id: bytes) -> str:
    return id.decode("utf-8", "backslashreplace")
