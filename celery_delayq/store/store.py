"""The store: one typed method for each operation on our data in Redis."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from typing import Any, cast

from celery_delayq.errors import CommandRefused, StoreFull
from celery_delayq.model.envelope import Entry, task_field, task_name
from celery_delayq.model.publish_outcome import Stored
from celery_delayq.model.script_values import to_text
from celery_delayq.store.control import ControlStore
from celery_delayq.store.dead_letters import DeadLetterStore
from celery_delayq.store.gauges import GaugeStore
from celery_delayq.store.history import HistoryStore
from celery_delayq.store.keys import Layout, queue_name
from celery_delayq.store.leases import LeaseStore
from celery_delayq.store.periodic import PeriodicStore
from celery_delayq.store.repair import RepairStore
from celery_delayq.store.repair_tracking import RepairTracking
from celery_delayq.store.scan import PAGE_MESSAGES, ScanStore
from celery_delayq.store.scripting.calls import Call, EntriesCall, ReadyCall, Steps, keys_of
from celery_delayq.store.scripting.clock import clock_us, time_command
from celery_delayq.store.scripting.replies import (
    MAX_TIME_MS,
    READY_LOOKS,
    Adopted,
    EntriesReply,
    Look,
    Promoted,
    Unacked,
    read_time,
)
from celery_delayq.store.scripting.runner import Part, ScriptRunner
from celery_delayq.store.task_limits import LimitStore
from celery_delayq.store.waits import WaitStore

logger = logging.getLogger(__name__)

#: Most ms by which the planned look at a queue may be later than its first due: after an error, or
#: because of ``max_ready``.
MAX_LOOK_DELAY_MS = 2000

#: Most tasks whose entries one call counts.
COUNT_TASKS = 100

#: Most leased messages whose unique keys one call of a purge looks at.
PURGE_MESSAGES = 500


class Store(ScriptRunner):
    """Our data in one Redis database.

    The methods are for entries and queues. All other data belongs to a part: an attribute with the
    name of its module.
    """

    leases = Part(LeaseStore)
    task_limits = Part(LimitStore)
    control = Part(ControlStore)
    dead_letters = Part(DeadLetterStore)
    history = Part(HistoryStore)
    waits = Part(WaitStore)
    periodic = Part(PeriodicStore)
    scan = Part(ScanStore)
    gauges = Part(GaugeStore)
    repair = Part(RepairStore)
    repair_tracking = Part(RepairTracking)

    # -- changes of state

    def schedule(self, queue: str, entry: Entry) -> tuple[Stored, int]:
        """Store a message until it is due. A due message goes to its ready list.

        Returns
        -------
        (state, due in ms)
            The state is ``"duplicate"`` if the same message is scheduled, ready or leased.

        Raises
        ------
        StoreFull
            Redis has no memory left. Nothing was stored.
        """
        call = self.schedule_call(queue)
        call.add(entry)
        now, [put], _ = EntriesReply.read(self.run(call))
        due = entry.due.ms + now if entry.due.relative else entry.due.ms
        return put.state, due

    def import_call(
        self, queue: str, entries: Iterable[Entry], token: str, *, retry: bool = False
    ) -> EntriesCall:
        """Return the call that schedules entries as :meth:`schedule_call` does.

        Its reply has the codes of ``replies.STATES``. For a minute, a repeated call with the same
        *token* returns the same reply.
        """
        most = -1 if retry else self.limits(queue).max_scheduled
        call = self.entries_call("schedule/import", queue, most, answer=token)
        for entry in entries:
            call.add(entry)
        return call

    def ready_call(self, queue: str) -> ReadyCall:
        """Return an empty call that pushes the added messages to the ready lists."""
        named = keys_of("schedule/push_ready", self.keys, queue)
        return ReadyCall("schedule/push_ready", [*named], [0], self.keys, queue, self.layout)

    def promote(self, *args: Any, **options: Any) -> Promoted:
        """Move due entries of a queue to its ready lists. Parameters of :meth:`promote_call`."""
        return self.read_promoted(self.run(self.promote_call(*args, **options)))

    def promote_call(
        self,
        queue: str,
        layout: Layout,
        limit: int,
        *,
        note: bool = False,
        dispatcher: str = "",
        skipped: Iterable[str] = (),
    ) -> Call:
        """Return the call that moves up to *limit* due entries of a queue to its ready lists.

        With *note* the script stores the time, as ``dispatched`` of ``keys.clock``. If an entry
        moves, *dispatcher* goes on duty; ``""`` for no change. The reply names none of the queues
        *skipped* as the next one.
        """
        limits = layout.limits
        flags = limits.promote_rate, limits.max_ready, int(limits.history > 0), int(note)
        args = [queue, limit, *flags, dispatcher, *layout.steps, *skipped]
        return self.new_call("dispatch/promote", queue, args, layout=layout)

    def read_promoted(self, reply: Sequence[Any]) -> Promoted:
        """Read the reply to :meth:`promote_call`."""
        *head, moved, dead_lettered, on_duty = reply
        look = self._look(head)._replace(on_duty=bool(on_duty))
        return Promoted(look, int(moved), int(dead_lettered))

    def take_from_unacked(self, queue: str, entry: Entry, unacked: Unacked) -> Adopted:
        """Move a message from kombu's ``unacked`` to the schedule or, if due, to its ready list."""
        call = self.new_call(
            "migration/take_from_unacked",
            queue,
            [*self.entry_args(queue, entry), unacked.tag],
            ready_list=self.keys.ready(queue, entry.priority, self.layout),
            unacked=unacked.unacked,
            unacked_index=unacked.unacked_index,
        )
        return cast(Adopted, self.run(call).decode())

    # -- for dispatchers

    def next_queue(
        self,
        max_gap: float = 10.0,
        dispatcher: str = "",
        *,
        is_subscribed: bool = False,
        ready_every: float = 0.0,
        skipped: Iterable[str] = (),
    ) -> Look:
        """Return which queue to look at next, and advance lease time.

        Parameters
        ----------
        max_gap : float
            Most seconds since the last call of any process. After a longer gap Redis was away, or
            its clock was set. Lease time does not advance over such a gap.
        dispatcher : str
            The id of a dispatcher that goes on duty if no other one is; ``""`` for none.
        is_subscribed : bool
            Whether the dispatcher listens to the fleet's channel, and counts the listeners.
        ready_every : float
            Seconds after the last look of the fleet at the ready lists from which it is this
            dispatcher's turn to look; 0: this dispatcher never looks at them.
        skipped : Iterable[str]
            Queues that this dispatcher leaves to others.
        """
        channel = self.keys.fleet if is_subscribed else ""
        args = [int(max_gap * 1000), dispatcher, channel, int(ready_every * 1000), *skipped]
        reply = self.run(self.new_call("dispatch/next_queue", None, args))
        *head, on_duty, fleet, queues, ready = reply[:7]
        look = self._look(head, reply[7:])
        return look._replace(
            on_duty=bool(on_duty),
            fleet=int(fleet),
            queues=int(queues),
            ready=READY_LOOKS[int(ready)],
        )

    def ready_of(self, queues: Sequence[tuple[str, Layout]]) -> list[tuple[str, Layout]]:
        """Return the queues that have a ready or quarantined message, or lanes."""
        lists = [self._ready_keys(*each) for each in queues]
        if not lists or not self.client.exists(*chain.from_iterable(lists)):
            return []
        with self.client.pipeline(transaction=False) as pipe:
            for each in lists:
                pipe.exists(*each)
            counts = pipe.execute()
        return [queue for queue, count in zip(queues, counts, strict=True) if count]

    def wake_ready(self, queues: Iterable[tuple[str, Layout]]) -> None:
        """Wake the consumers of each queue that has a ready message, or a lane that may go.

        Raises
        ------
        CommandRefused
            Redis refused the call of one queue or more. The other calls were made.
        """
        calls = [self.wake_ready_call(*each) for each in queues]
        for reply in self.run_all(calls):
            if isinstance(reply, Exception):
                raise reply

    def forget_ready_look(self) -> None:
        """Let another dispatcher check the ready lists at once: this account has no right to."""
        self.client.hdel(self.keys.clock, "ready_looked")

    def wake_ready_call(self, queue: str, layout: Layout) -> Call:
        """Return the call of :meth:`wake_ready` for one queue."""
        return self.new_call("dispatch/wake_ready", queue, [queue], layout=layout)

    def interrupt(self, name: str) -> None:
        """End the wait of an idle consumer."""
        key = self.keys.interrupt(name)
        with self.client.pipeline(transaction=False) as pipe:
            pipe.lpush(key, "")
            pipe.expire(key, 60)
            pipe.execute()

    def _ready_keys(self, queue: str, layout: Layout) -> list[str]:
        key = self.keys.queue(queue)
        return [*self.keys.ready_lists(queue, layout), key.quarantined, key.lanes]

    def resign(self, dispatcher: str) -> None:
        """Leave the duty to the dispatcher that looks next."""
        self.run(self.new_call("dispatch/resign", None, [dispatcher]))

    def defer_queue(self, queue: str, seconds: float, skipped: Iterable[str] = ()) -> Look:
        """Put off the look at *queue* for *seconds*. Return the next look, except at *skipped*."""
        args = [queue, int(seconds * 1000), *skipped]
        return self._look(self.run(self.new_call("dispatch/defer_queue", None, args)))

    def register(self, queue: str) -> None:
        """Store the layout of a consumed queue. All dispatchers promote to its lists."""
        text = self.layout_of(queue).text
        try:
            self.client.hset(self.keys.queues, queue, text)
        except StoreFull:  # a worker that connects again to a full server must not stop
            if self.client.hget(self.keys.queues, queue) != text.encode():
                raise

    def registry(self) -> dict[str, bytes]:
        """Return the stored layout of every registered queue."""
        found = cast("dict[bytes, bytes]", self.client.hgetall(self.keys.queues))
        return {name: layout for queue, layout in found.items() if (name := queue_name(queue))}

    def registered(self, queue: str) -> dict[str, bytes]:
        """Return the registry's entry for one queue; empty if it has none."""
        layout = cast("bytes | None", self.client.hget(self.keys.queues, queue))
        return {} if layout is None else {queue: layout}

    def repair_types(self) -> list[str]:
        """Delete shared keys of a wrong type, which stop all dispatchers. Return a text for each.

        The contents of the keys are lost already. Indexes are filled again: all queues get a look,
        and lanes that wait for a permit are tried. Pauses are lost, and lease time starts again.
        """
        keys = self.keys
        wanted = dict.fromkeys((keys.next_due, keys.lease_ends), "zset")
        wanted |= dict.fromkeys((keys.queues, keys.clock, keys.control, keys.limits), "hash")
        wanted |= dict.fromkeys((keys.permits, keys.slots), "zset")
        wanted |= dict.fromkeys((keys.blocked_lanes, keys.freed_lanes), "zset")
        deleted = self.run(self.new_call("repair/types", None))
        if not deleted:
            return []
        if queues := dict.fromkeys(self.registry(), 0):
            with self.client.pipeline(transaction=False) as pipe:
                pipe.zadd(keys.next_due, cast("dict[Any, Any]", queues), lt=True)
                pipe.zadd(keys.lease_ends, cast("dict[Any, Any]", queues), lt=True)
                pipe.execute()
        names, texts = [*wanted], list[str]()
        for place, found in zip(deleted[::2], deleted[1::2], strict=True):
            name = names[place - 1]
            texts.append(f"{name} is a {found.decode()}, expected a {wanted[name]}")
            logger.error("deleted a key of a wrong type: %s", texts[-1])
        of_lanes = {keys.permits, keys.blocked_lanes, keys.freed_lanes}
        if not of_lanes.isdisjoint(names[place - 1] for place in deleted[::2]):
            for queue in queues:
                with suppress(CommandRefused):  # a key of this queue has a wrong type too
                    self.repair_tracking.wake_forgotten_lanes(queue)
        return texts

    def register_again(self, queues: Sequence[str]) -> None:
        """Register consumed queues that the registry has lost."""
        with self.client.pipeline(transaction=False) as pipe:
            for queue in queues:
                pipe.hsetnx(self.keys.queues, queue, self.layout_of(queue).text)
            pipe.execute(raise_on_error=False)

    def announce_missing(
        self, queues: Sequence[tuple[str, Layout]], now_ms: int
    ) -> tuple[list[str], bool]:
        """Plan a look at queues that the next-due index lacks, or has too late.

        A look that is too early is harmless, so the two calls need not be atomic.

        Returns
        -------
        (list[str], bool)
            These queues; whether there are limits, permits, or lanes of the given queues.
        """
        due_by_queue: dict[str, float] = {}
        has_limits, planned = self._planned_looks([queue for queue, _ in queues])
        for (queue, layout), (first_due, planned_at, is_paused) in zip(
            queues, planned, strict=True
        ):
            if is_paused or not first_due:
                continue
            due = float(first_due)
            rate = layout.limits.promote_rate
            latest = max(due, now_ms) + MAX_LOOK_DELAY_MS + (1000 / rate if rate else 0)
            # No look is planned, or the planned look is too late.
            if due < MAX_TIME_MS and (not planned_at or float(planned_at) > latest):
                due_by_queue[queue] = due
        if due_by_queue:
            self.client.zadd(self.keys.next_due, cast("dict[Any, Any]", due_by_queue), lt=True)
        return [*due_by_queue], has_limits

    def _planned_looks(self, queues: Sequence[str]) -> tuple[bool, list[tuple[bytes, bytes, int]]]:
        """Return the reply of ``dispatch/planned_looks.lua``; ``""`` as the times of a queue that
        the account may not read.
        """
        if not queues:
            return False, []
        try:
            has_limits, *looks = self.run(self._planned_call(*queues))
        except CommandRefused:  # one refused queue refuses the whole call
            alone = self.run_all([self._planned_call(queue) for queue in queues])
            found = [(0, (b"", b"", 0)) if isinstance(each, Exception) else each for each in alone]
            has_limits = any(each[0] for each in found)
            looks = [each[1] for each in found]
        return bool(has_limits), looks

    def _planned_call(self, *queues: str) -> Call:
        keys = [self.keys.queue(queue) for queue in queues]
        more = [*(key.due for key in keys), *(key.lanes for key in keys)]
        return self.new_call("dispatch/planned_looks", None, queues, more=more)

    # -- reads

    def now_ms(self) -> int:
        """Return Redis' clock in ms since 1970."""
        return self.now_us() // 1000

    def now_us(self) -> int:
        """Return Redis' clock in µs since 1970."""
        return clock_us(self.client.execute_command(*time_command().args))

    def scheduled(self, queue: str, task: str | None = None) -> int:
        """Return the number of scheduled entries of a queue, or of one task in it."""
        key = self.keys.queue(queue)
        if task is None:
            return cast(int, self.client.zcard(key.due))
        field = task_field(task)
        return cast(int, self.client.zlexcount(key.tasks, f"[{field}\0", f"({field}\1"))

    def scheduled_tasks_steps(self, queue: str) -> Steps[dict[str, int]]:
        """Return the number of scheduled entries of a queue, by task."""
        counts: dict[str, int] = {}
        start: bytes = b"-"
        while start:
            start, *found = yield self.new_call("scan/tasks", queue, [start, COUNT_TASKS])
            for field, count in zip(found[::2], found[1::2], strict=True):
                counts[task_name(to_text(field))] = count
        return counts

    def unacked_count(self, unacked: str) -> int:
        """Return the number of messages that kombu keeps for stock workers."""
        return cast(int, self.client.hlen(unacked))

    def unacked_message(self, unacked: Unacked) -> bytes | None:
        """Return a message of kombu's ``unacked``; None if it is gone."""
        return cast("bytes | None", self.client.hget(unacked.unacked, unacked.tag))

    def ready_messages(self, queue: str, layout: Layout, limit: int) -> Iterator[bytes]:
        """Yield up to *limit* messages of the ready lists of a queue, oldest first in each."""
        scan = self.scan
        for ready in self.keys.ready_lists(queue, layout):
            for found in scan.messages(ready, 0, limit, PAGE_MESSAGES):
                yield from found
                limit -= len(found)

    def server_memory(self) -> tuple[int | None, int | None]:
        """Return the server's used bytes and its limit; None for no limit or an unknown number."""
        try:
            info = cast("dict[str, int]", self.client.info("memory"))
        except CommandRefused:
            return None, None
        return info.get("used_memory"), info.get("maxmemory") or None

    # -- deletions

    def purge(self, queue: str, *, deleted: bool = False) -> tuple[int, int]:
        """Delete the waiting messages of a queue. Return the numbers of scheduled and ready ones.

        Quarantined messages count as scheduled. Dead letters stay. With *deleted*, a queue without
        dead letters is removed from the registry too.
        """
        args = [queue, "1" if deleted else "0", PURGE_MESSAGES]
        call = self.new_call("schedule/purge", queue, args, layout=self.layout)
        scheduled, quarantined, ready, *unowned = self.run(call)
        if unowned:
            self.forget_unowned(queue)
        return scheduled + quarantined, ready

    def forget_unowned(self, queue: str) -> None:
        """Delete unique keys that no message has, and duplicate ids of messages that are gone."""
        for which in ("keys", "names"):
            cursor = None
            while cursor != b"0":
                args = [which, cursor or 0]
                cursor = self.run(self.new_call("schedule/forget_unowned", queue, args))

    # -- helpers

    def _look(self, reply: Sequence[Any], lease_ends: Sequence[bytes] = ()) -> Look:
        now, member, due, *_ = reply
        name = self._queue(self.keys.next_due, member)
        ended = (self._queue(self.keys.lease_ends, each) for each in lease_ends)
        # Also for a removed name: the next queue of the index may be due too.
        when = read_time(due) if due else None
        return Look(int(now), name, when, tuple(each for each in ended if each))

    def _queue(self, index: str, member: bytes) -> str | None:
        """Return the queue at the head of an index. Remove a member that is not a queue's name."""
        name = queue_name(member)
        if name is None:
            logger.error("Removed %r from %s: it is no name of a queue", member, index)
            self.client.zrem(index, member)
        return name or None


def layouts(registry: Mapping[str, bytes]) -> dict[str, Layout]:
    """Return the layout of each queue of a registry; kombu's default for an unreadable layout."""
    return {queue: _layout(text) for queue, text in registry.items()}


@lru_cache(maxsize=1024)
def _layout(text: bytes) -> Layout:
    try:
        return Layout.loads(text)
    except ValueError:
        return Layout()
