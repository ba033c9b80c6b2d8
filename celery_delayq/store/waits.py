"""Reads all that an entry may wait for, in two round trips."""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import sha1
from typing import Any, NamedTuple

from celery_delayq.model.envelope import Label, task_field
from celery_delayq.model.limits.lanes import next_start_us, range_of_lane
from celery_delayq.model.scheduled import ScheduledTask
from celery_delayq.model.script_values import IndexEntry, score_of, to_bytes, to_text
from celery_delayq.store.keys import Layout
from celery_delayq.store.leases import DeliveryCounts
from celery_delayq.store.scan import PAGE_MESSAGES, ScanStore
from celery_delayq.store.scripting.calls import Command, Steps
from celery_delayq.store.scripting.clock import clock_us, time_command
from celery_delayq.store.scripting.replies import answered, cut, members_with_scores
from celery_delayq.store.scripting.runner import StorePart, ran
from celery_delayq.store.task_limits import LimitStore, StoredLimit
from celery_delayq.utils import foreign

#: Longest time (ms) without a look of a dispatcher over which lease time goes on: the default of
#: :meth:`~celery_delayq.store.store.Store.next_queue`.
MAX_GAP_MS = 10_000

#: Most permits of a lane that are read.
MAX_PERMITS = 100


class LaneWaits(NamedTuple):
    """The lane of a held entry.

    Attributes
    ----------
    ahead : int
        Held entries of the queue that are before the entry in its lane.
    used : int
        Leased messages of the lane.
    next_ms : float | None
        When the next entry may go, in ms since 1970: the present if it may go now, infinity while
        all permits are taken. None if the lane has no entries.
    limit : StoredLimit
        The definitions of the limit.
    permit_ids : frozenset[str]
        The ids of up to :data:`MAX_PERMITS` tasks with a permit of the lane.
    """

    ahead: int
    used: int
    next_ms: float | None
    limit: StoredLimit
    permit_ids: frozenset[str] = frozenset()


class Waits(NamedTuple):
    """All that an entry may wait for. Times are in ms since 1970, None if there is none.

    Attributes
    ----------
    now_ms : int
        Redis' clock.
    looked_ms : int | None
        When a dispatcher last looked.
    lease_now_ms : int
        Lease time.
    queue_paused_ms, task_paused_ms, revoked_ms : int | None
        When the queue or the name of the task was paused, and the task or its canvas was revoked.
    ready : int
        Ready messages of the queue.
    has_lease : bool
        Whether some process extends its lease on messages of the queue.
    due_before : int
        Entries of the queue that are due before the entry and are not held.
    lease_ends_ms : int | None
        When the lease of the entry's process ends, in lease time.
    quarantined_deaths : int | None
        How often processes that had the entry have died, if the entry is quarantined.
    lane : LaneWaits | None
        The lane of a held entry.
    """

    now_ms: int
    looked_ms: int | None
    lease_now_ms: int
    queue_paused_ms: int | None = None
    task_paused_ms: int | None = None
    revoked_ms: int | None = None
    ready: int = 0
    has_lease: bool = False
    due_before: int = 0
    lease_ends_ms: int | None = None
    quarantined_deaths: int | None = None
    lane: LaneWaits | None = None


class Trace(NamedTuple):
    """What a queue knows of an id without an entry: its dead letter, and its cancelled message."""

    dead_letter: bytes | None
    cancelled: IndexEntry | None


class WaitStore(StorePart):
    """The part of the store that tells what an entry waits for. It only reads."""

    def waits_steps(
        self,
        queue: str,
        layout: Layout,
        entry: ScheduledTask,
        due_ms: int,
        revocations: Sequence[bytes],
    ) -> Steps[Waits]:
        """Return what an entry of a queue waits for.

        Parameters
        ----------
        due_ms : int
            When the entry is due.
        revocations : Sequence[bytes]
            The members of the set of revokes for the entry.
        """
        keys, key = self._keys, self._keys.queue(queue)
        paused_fields = to_bytes(f"q{queue}"), to_bytes(f"t{task_field(entry.task)}")
        replies = iter(
            answered(
                (
                    yield [
                        time_command(),
                        Command.of("HMGET", keys.clock, "seen", "stood"),
                        Command.of("HMGET", keys.control, *paused_fields),
                        Command.of("ZMSCORE", keys.revoked, *revocations),
                        Command.of("ZRANGE", key.leases, -1, -1, "WITHSCORES"),
                        Command.of("ZSCORE", key.leases, to_bytes(entry.worker)),
                        Command.of("ZCOUNT", key.due, "-inf", f"({due_ms}"),
                        Command.of("LLEN", key.quarantined),
                        *(Command.of("LLEN", name) for name in keys.ready_lists(queue, layout)),
                    ]
                )
            )
        )
        now_ms = clock_us(next(replies)) // 1000
        looked_ms, stood_ms = map(_number, next(replies))
        queue_paused_ms, task_paused_ms = map(_number, next(replies))
        revoked = [score_of(score) for score in next(replies) if score is not None]
        last_lease, lease_ends, due_before, quarantined, *lengths = replies
        lease_now_ms = lease_now(now_ms, looked_ms, stood_ms or 0)
        waits = Waits(
            now_ms,
            looked_ms,
            lease_now_ms,
            queue_paused_ms,
            task_paused_ms,
            min(revoked, default=None),
            sum(lengths),
            any(end > lease_now_ms for end in _scores(last_lease)),
            due_before,
            None if lease_ends is None else score_of(lease_ends),
        )
        if entry.state == "ready" and quarantined:
            deaths = yield from self._deaths_steps(queue, entry)
            waits = waits._replace(quarantined_deaths=deaths)
        if entry.state == "held":
            lane = yield from self._lane_steps(queue, entry, due_ms, now_ms)
            waits = waits._replace(lane=lane)
        return waits

    waits = ran(waits_steps)

    def _deaths_steps(self, queue: str, entry: ScheduledTask) -> Steps[int | None]:
        """Return how often processes that had a quarantined message have died; None if the message
        is not among the first quarantined ones.
        """
        key = self._keys.queue(queue)
        reply = yield ScanStore.messages_call(key.quarantined, -1, PAGE_MESSAGES)
        for item in cut(*reply):
            message = item.partition(b"\n")[2]
            label = Label.of(message)
            if label is not None and to_bytes(entry._name) in (label.id, label.name):
                digest = sha1(message, usedforsecurity=False).hexdigest()
                counts = yield Command.of("HGET", key.deliveries, digest)
                return DeliveryCounts.read(counts or b"").reclaimed
        return None

    def _lane_steps(
        self, queue: str, entry: ScheduledTask, due_ms: int, now_ms: int
    ) -> Steps[LaneWaits]:
        lane, limit = entry.lane, entry.lane.partition(":")[0]
        limits, keys = LimitStore(self._runner), self._keys
        in_lane = range_of_lane(lane)
        ahead, used, next_try, used_until, rules, permits = answered(
            (
                yield [
                    limits.ahead_command(queue, lane, entry.priority or 0, due_ms, entry._name),
                    Command.of("ZLEXCOUNT", keys.permits, *in_lane),
                    Command.of("ZSCORE", keys.queue(queue).lanes, to_bytes(lane)),
                    Command.of("ZSCORE", keys.slots, to_bytes(lane)),
                    Command.of("HMGET", keys.limits, f"c{limit}", f"o{limit}"),
                    Command.of("ZRANGEBYLEX", keys.permits, *in_lane, "LIMIT", 0, MAX_PERMITS),
                ]
            )
        )
        stored = StoredLimit(*(to_text(each or b"") for each in rules))
        next_ms: float | None = None
        if next_try is not None:
            times_us = float(used_until or 0), float(next_try), now_ms * 1000
            next_ms = next_start_us(stored.definition, used, *times_us) / 1000
        return LaneWaits(
            ahead,
            used,
            next_ms,
            stored,
            frozenset(to_text(each.split(b"\0")[2]) for each in permits if each.count(b"\0") > 1),
        )

    def trace_steps(self, queue: str, id: str) -> Steps[Trace]:
        """Return what a queue knows of an id that no entry has."""
        key, name = self._keys.queue(queue), to_bytes(id)
        dead_letter, ready = answered(
            (
                yield [
                    Command.of("HGET", key.dead, name),
                    Command.of("HGET", key.ready_index, name),
                ]
            )
        )
        index = None if ready is None else IndexEntry.unpack(ready)
        return Trace(dead_letter, index if index is not None and index.cancelled else None)

    def revoked_ms(self, revocations: Sequence[bytes]) -> int | None:
        """Return when the first of some members of the set of revokes was revoked, in ms."""
        found = self._runner.client.zmscore(self._keys.revoked, list(revocations))
        return min((score_of(score) for score in found if score is not None), default=None)


def lease_now(now_ms: int, looked_ms: int | None, stood_ms: int) -> int:
    """Return lease time, as ``include/leases/lease.lua`` does."""
    looked_ms = now_ms if looked_ms is None else looked_ms
    gap = now_ms - looked_ms
    return looked_ms + (gap if 0 <= gap <= MAX_GAP_MS else 0) - stood_ms


def _number(value: bytes | None) -> int | None:
    return None if value is None else foreign.parse_integer(value)


def _scores(found: Sequence[Any]) -> list[int]:
    """Return the scores in a reply, without those that are no numbers."""
    scores = [score for _, score in members_with_scores(found)]
    return [score_of(score) for score in scores if not math.isnan(score)]
