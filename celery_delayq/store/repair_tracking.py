"""Finds and repairs drift of the indexes outside the schedule.

These indexes are: paused and due entries, unique keys, duplicate ids, and ready and leased
messages. Each script looks at one batch, as in :mod:`celery_delayq.store.repair`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple, cast

from celery_delayq.model.delivery import split_leased
from celery_delayq.model.envelope import Label
from celery_delayq.model.script_values import IndexEntry, to_bytes
from celery_delayq.store.keys import Layout, queue_name
from celery_delayq.store.repair import CALL_MEMBERS, SCAN_COUNT, Batch, RepairPart
from celery_delayq.store.scan import Index
from celery_delayq.store.scripting.calls import Call
from celery_delayq.utils.portions import batches

#: Most bytes of messages that a script reads to check that messages are gone: about 10 ms. Other
#: scripts read less, but this one must read all messages of a process at one moment.
MAX_READ_BYTES = 4 * 1024 * 1024

#: Most leased messages that a script counts at one moment.
MAX_LEASED_MESSAGES = 4_000


#: Parts of a permit: lane, queue, id and message id.
_PERMIT_PARTS = 4


class Tracked(NamedTuple):
    """An entry of the ready or the leased index: name and value."""

    name: bytes
    value: bytes

    @property
    def message(self) -> bytes:
        """The message's name, in the form of ``duplicate_name`` in ``include/tracking.lua``."""
        entry = IndexEntry.unpack(self.value)
        return self.name.partition(b"\0")[0] + b"\0" + (entry.message_id if entry else b"")

    @property
    def holder(self) -> str:
        """The worker id under which the message is leased; ``""`` if that is not known."""
        entry = IndexEntry.unpack(self.value)
        return entry.holder if entry else ""


def cancelled_in(message: bytes, cancelled: Mapping[bytes, Tracked]) -> Tracked | None:
    """Return the index entry of *message* among *cancelled*; None if it is not cancelled."""
    label = Label.of(message)
    return None if label is None else cancelled.get(label.name)


class RepairTracking(RepairPart):
    """The part of the store for drift between indexes and the messages themselves."""

    def wrong_types(self, queue: str, layout: Layout) -> list[str]:
        """Return a sentence for each key of a queue that has a wrong type."""
        key = self._keys.queue(queue)
        held = (key.paused_due, key.held, key.lanes)
        zsets = (key.due, key.tasks, *held, key.duplicate_ids, key.dead_at, key.leases)
        indexes = (key.unique, key.ready_index, key.leased_index)
        counts = (key.totals, key.deliveries, key.request_numbers)
        hashes = (key.entries, *indexes, key.pace, key.dead, *counts)
        lists = (key.wake, key.lanes_wake, key.quarantined, *self._keys.ready_lists(queue, layout))
        kinds = {"zset": (*zsets, *key.moves), "hash": hashes, "list": lists}
        wanted = {name: kind for kind, names in kinds.items() for name in names}
        return self._wrong({**wanted, key.quarantine_turn: "string"})

    def wrong_shared_types(self) -> list[str]:
        """Return a sentence for each shared key that has a wrong type."""
        keys = self._keys
        hashes = (keys.control, keys.clock, keys.ticks, keys.queues, keys.periodic, keys.limits)
        zsets = (keys.next_due, keys.lease_ends, keys.revoked, keys.periodic_at, keys.celery_beats)
        of_limits = (keys.permits, keys.slots, keys.blocked_lanes, keys.freed_lanes)
        wanted = dict.fromkeys((*hashes, keys.code_versions), "hash")
        wanted |= dict.fromkeys((*zsets, *of_limits), "zset")
        of_history = (keys.history_index, keys.history_index_before)
        strings = dict.fromkeys((keys.archiving, keys.cluster_tags, *of_history), "string")
        return self._wrong({**wanted, **strings, keys.history: "stream"})

    def _wrong(self, wanted: Mapping[str, str]) -> list[str]:
        """Return a sentence for each key of a wrong type, as ``expect_type`` in scripts does."""
        with self._runner.client.pipeline(transaction=False) as pipe:
            for key in wanted:
                pipe.type(key)
            found = [kind.decode() for kind in pipe.execute()]
        return [
            f"{key} is a {kind}, expected a {wanted[key]}"
            for key, kind in zip(wanted, found, strict=True)
            if kind not in (wanted[key], "none")
        ]

    # -- the indexes

    def check_paused_due(self, queue: str, cursor: int, *, repair: bool) -> Batch:
        """Check a batch of the paused and due entries."""
        return self._page("repair/paused_and_due", queue, cursor, repair)

    def check_lanes(self, queue: str, cursor: int, *, repair: bool) -> Batch:
        """Check a batch of the entries in lanes."""
        return self._page("repair/lanes", queue, cursor, repair)

    def check_forgotten_lanes(self, queue: str, cursor: int, *, repair: bool) -> Batch:
        """Check a batch of the lanes that wait for a permit."""
        return Batch.read(self._runner.run(self.forgotten_lanes_call(queue, cursor, repair=repair)))

    def forgotten_lanes_call(self, queue: str, cursor: int, *, repair: bool) -> Call:
        """Return the call of :meth:`check_forgotten_lanes`; its reply is a :class:`Batch`."""
        args = [queue, cursor, SCAN_COUNT, int(repair)]
        return self._new_call("limits/forgotten_lanes", queue, args)

    def wake_forgotten_lanes(self, queue: str) -> None:
        """Have all lanes tried that wait for a permit which does not come back."""
        cursor = None
        while cursor != 0:
            cursor = self.check_forgotten_lanes(queue, cursor or 0, repair=True).cursor

    def check_permits(
        self, cursor: int, *, repair: bool, queue: str | None = None
    ) -> tuple[int, list[tuple[str, Batch]]]:
        """Check a batch of the permits of all queues, or of one queue.

        Returns
        -------
        (int, list[tuple[str, Batch]])
            Where the next call continues, 0 at the end; the findings of queues.
        """
        cursor, found = self._runner.client.zscan(self._keys.permits, cursor, count=SCAN_COUNT)
        by_queue: dict[str, list[tuple[bytes, bytes, bytes]]] = {}
        for member, _ in found:
            parts = member.split(b"\0")
            name = queue_name(parts[1]) if len(parts) == _PERMIT_PARTS else None
            if name is not None and queue in (None, name):
                by_queue.setdefault(name, []).append((parts[0], parts[2], parts[3]))
        batches_found = []
        for name, permits in by_queue.items():
            for some in batches(permits, CALL_MEMBERS):
                batches_found.append((name, self.check_permits_of(name, some, repair=repair)))
        return cursor, batches_found

    def check_permits_of(
        self, queue: str, permits: Iterable[tuple[bytes, bytes, bytes]], *, repair: bool
    ) -> Batch:
        """Check permits of one queue: lane, id and message id of each."""
        args = [queue, self._keys.wake, int(repair), *chain.from_iterable(permits)]
        return self._look("repair/permits", queue, args)

    def check_ready(self, queue: str, cursor: int, *, repair: bool) -> Batch:
        """Check a batch of the ready index."""
        return self._page("repair/tracking", queue, cursor, repair, "waiting")

    def check_leased(self, queue: str, cursor: int, *, repair: bool) -> Batch:
        """Check a batch of the leased index."""
        return self._page("repair/tracking", queue, cursor, repair, "running")

    def check_totals(
        self, queue: str, layout: Layout, worker_ids: Sequence[str], *, repair: bool
    ) -> Batch | None:
        """Compare the counters with the messages.

        *worker_ids* are processes that may have leased some. Return None if other processes have
        leased messages, or if too many messages are leased.
        """
        key, lists = self._keys.queue(queue), self._keys.ready_lists(queue, layout)
        leased = [*lists, *map(key.leased, worker_ids)]
        args = [int(repair), MAX_LEASED_MESSAGES, len(lists), *map(to_bytes, worker_ids)]
        batch = self._look("repair/totals", queue, args, more=leased)
        return None if batch.cursor else batch

    # -- the messages

    def leased(self, queue: str, worker_id: str) -> Iterator[bytes | None]:
        """Yield the names of the messages leased to a process, as :attr:`Tracked.message`.

        Yield None for a message without a label.
        """
        for _, value in self._scan.leased(queue, worker_id):
            label = Label.of(split_leased(value)[1])
            yield label and label.name

    def forget_ready(
        self, queue: str, layout: Layout, some: Iterable[tuple[Tracked, bytes]] = ()
    ) -> int:
        """Remove messages from the ready index. Return the number removed from their lists too.

        Parameters
        ----------
        some : Iterable[tuple[Tracked, bytes]]
            The index entries. A cancelled message follows, to remove it from its list; else
            ``b""``.
        """
        args = [part for tracked, message in some for part in (*tracked, message)]
        return cast(int, self._run("repair/forget_ready", queue, args, layout=layout))

    def is_turning(self, queue: str, ready_list: str) -> bool:
        """Return whether :meth:`drop_cancelled` has begun a list and not finished it."""
        return bool(self._runner.client.exists(self._keys.queue(queue).turning(ready_list)))

    def drop_cancelled(
        self, queue: str, ready_list: str, cancelled: Mapping[bytes, Tracked]
    ) -> None:
        """Remove cancelled messages from a ready list. The time depends only on the list's length.

        Each message moves from one end of the list to the other once, so that the order stays. An
        interrupted call is continued by the next call. Messages that are added meanwhile may come
        between the others.

        Parameters
        ----------
        cancelled : Mapping[bytes, Tracked]
            The index entries by the names of their messages.
        """
        keys = {"ready_list": ready_list, "turning": ready_list}
        unchecked = self._run("repair/drop_cancelled", queue, ["", 0], **keys)
        while unchecked:
            # One call of the script, which may return less than a batch.
            found = next(
                self._scan.messages(ready_list, 0, min(unchecked, CALL_MEMBERS), CALL_MEMBERS), []
            )
            args: list[object] = [unchecked, len(found) or 1]
            for place, message in enumerate(found, 1):
                if tracked := cancelled_in(message, cancelled):
                    args += [place, *tracked, message]
            unchecked = self._run("repair/drop_cancelled", queue, args, **keys)

    def tracked(self, queue: str, index: Index) -> Iterator[Tracked]:
        """Yield all entries of the ready or the leased index (HSCAN)."""
        for item in self._runner.client.hscan_iter(self._index(queue, index), count=SCAN_COUNT):
            yield Tracked(*item)

    def _index(self, queue: str, index: Index) -> str:
        key = self._keys.queue(queue)
        return key.leased_index if index == "running" else key.ready_index

    def check_gone(
        self, queue: str, worker_ids: Iterable[str], seen: Iterable[Tracked], *, repair: bool
    ) -> Batch | None:
        """Check messages of the leased index that were not found in any process.

        A message is gone if no process of *worker_ids* has it and its index entry is as *seen*.
        Return None if there are too many bytes to read.
        """
        leased = [*map(self._keys.queue(queue).leased, worker_ids)]
        args = [int(repair), MAX_READ_BYTES, *chain.from_iterable(seen)]
        batch = self._look("repair/gone", queue, args, more=leased)
        return None if batch.cursor else batch
