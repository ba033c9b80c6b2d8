"""Limits in Redis: their definitions, and the use of their lanes."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from celery_delayq.model.limits import Definition
from celery_delayq.model.limits.lanes import held_member, range_of_lane, range_of_limit
from celery_delayq.model.script_values import to_bytes, to_text
from celery_delayq.store.keys import queue_name
from celery_delayq.store.scan import PAGE_FIELDS
from celery_delayq.store.scripting.calls import Call, Command, Steps
from celery_delayq.store.scripting.clock import clock_us, time_command
from celery_delayq.store.scripting.replies import answered, members_with_scores
from celery_delayq.store.scripting.runner import StorePart, ran

#: Most lanes that are read together.
PAGE_LANES = 500


class StoredLimit(NamedTuple):
    """The definitions of one limit: what the code says, and what people have set; "" for none.

    The form of a definition is in ``include/limits/lanes.lua``.
    """

    of_code: str = ""
    override: str = ""

    @property
    def definition(self) -> Definition | None:
        """What counts; None for no limit."""
        return Definition.parse(self.override or self.of_code)


class WaitingTasks(NamedTuple):
    """What waits for limits in a queue.

    Attributes
    ----------
    held : dict[str, int]
        Held entries of each limit.
    may_go : int
        Held entries that a worker may take now. From many lanes it is estimated by a sample.
    lane : str
        Of the lanes that may go, the one that was due first; "" for none.
    since_us : float
        The time (µs since 1970) from which that lane was due; infinity if it is not known, since a
        permit came back.
    """

    held: dict[str, int]
    may_go: int = 0
    lane: str = ""
    since_us: float = math.inf


class LimitStore(StorePart):
    """The part of the store for limits."""

    def definitions(self) -> dict[str, StoredLimit]:
        """Return all limits by name."""
        found: dict[str, StoredLimit] = {}
        for field, value in self._runner.client.hgetall(self._keys.limits).items():
            kind, name = to_text(field)[:1], to_text(field)[1:]
            known = found.get(name, StoredLimit())
            if kind == "c":
                found[name] = known._replace(of_code=to_text(value))
            elif kind == "o":
                found[name] = known._replace(override=to_text(value))
        return found

    def announce(
        self, definitions: Mapping[str, str], *, only_missing: bool = False
    ) -> dict[str, str]:
        """Store what the code says of limits. Return the former definitions that were others.

        With *only_missing*, definitions that are there stay: code that started later has stored
        them.
        """
        if not definitions:
            return {}
        names = [*definitions]
        fields = [f"{kind}{name}" for kind in "co" for name in names]
        found = self._runner.client.hmget(self._keys.limits, fields)
        stored = dict(zip(fields, found, strict=True))
        before = {name: to_text(each) for name in names if (each := stored[f"c{name}"]) is not None}
        # Only what is new: a full server accepts nothing more.
        new = {
            f"c{name}": text
            for name, text in definitions.items()
            if before.get(name) != text and not (only_missing and name in before)
        }
        for name, former in before.items():
            if f"c{name}" in new:
                known = StoredLimit(former, to_text(stored[f"o{name}"] or b""))
                new |= self._change_of_rate(name, known, known._replace(of_code=definitions[name]))
        if new:
            self._runner.client.hset(self._keys.limits, mapping=new)
        return {name: former for name, former in before.items() if f"c{name}" in new}

    def change(self, name: str, before: StoredLimit, after: StoredLimit) -> bool:
        """Store the definitions of a limit, and remove what is empty.

        Return False, and change nothing, if the definitions are not *before* any more.
        """
        args = [name, *map(to_bytes, (*before, *after)), int(_is_other_rate(before, after))]
        return bool(self._run("limits/change", None, args))

    def stored(self, name: str) -> StoredLimit:
        """Return the definitions of one limit."""
        found = self._runner.client.hmget(self._keys.limits, [f"c{name}", f"o{name}"])
        return StoredLimit(*(to_text(each or b"") for each in found))

    def _change_of_rate(self, name: str, before: StoredLimit, now: StoredLimit) -> dict[str, str]:
        """Return the field that has lanes go on without their burst; none for the same rate."""
        if not _is_other_rate(before, now):
            return {}
        [reply] = answered(self._runner.run_all([time_command()]))
        return {f"r{name}": str(clock_us(reply))}

    def wake_lanes(self, names: Iterable[str]) -> None:
        """Wake the lanes of limits whose definitions have changed: each is tried now."""
        queues = [*map(queue_name, self._runner.client.hkeys(self._keys.queues))]
        steps = [self.wake_lanes_steps(queue, name) for name in names for queue in queues if queue]
        for result in self._runner.run_each(steps):
            if isinstance(result, Exception):
                raise result

    def wake_lanes_steps(self, queue: str, name: str) -> Steps[None]:
        """Wake the lanes of a limit in one queue."""
        after = b""
        while True:
            after = yield self._new_call("limits/wake_lanes", queue, [name, after])
            if not after:
                return

    def used_steps(self, lanes: Iterable[str]) -> Steps[list[int]]:
        """Return the number of leased messages of each lane."""
        calls = [_count(self._keys.permits, range_of_lane(lane)) for lane in lanes]
        return answered((yield calls))

    used = ran(used_steps)

    def held_steps(self, queue: str, lanes: Iterable[str]) -> Steps[list[int]]:
        """Return the number of held entries of each lane in a queue."""
        held = self._keys.queue(queue).held
        calls = [_count(held, range_of_lane(lane)) for lane in lanes]
        return answered((yield calls))

    held = ran(held_steps)

    def used_until_steps(self, lanes: Iterable[str]) -> Steps[list[float]]:
        """Return the time (µs) up to which the slots of each lane are used; 0 for none."""
        calls = [Command.of("ZSCORE", self._keys.slots, to_bytes(lane)) for lane in lanes]
        return [float(each or 0) for each in answered((yield calls))]

    used_until = ran(used_until_steps)

    def used_by_limit_steps(self, names: Sequence[str]) -> Steps[dict[str, int]]:
        """Return the number of leased messages of each limit."""
        return (yield from self._count_each_steps(self._keys.permits, names))

    used_by_limit = ran(used_by_limit_steps)

    def held_by_limit_steps(self, queue: str, names: Sequence[str]) -> Steps[dict[str, int]]:
        """Return the number of held entries of each limit in a queue."""
        return (yield from self._count_each_steps(self._keys.queue(queue).held, names))

    def _count_each_steps(self, key: str, names: Sequence[str]) -> Steps[dict[str, int]]:
        found = answered((yield [_count(key, range_of_limit(name)) for name in names]))
        return dict(zip(names, found, strict=True))

    def waiting_steps(
        self, queue: str, definitions: Mapping[str, Definition | None], now_us: int
    ) -> Steps[WaitingTasks]:
        """Return what waits for limits in a queue."""
        held = yield from self.held_by_limit_steps(queue, [*definitions])
        total = sum(held.values())
        if not total:
            return WaitingTasks(held)
        lanes = self._keys.queue(queue).lanes
        page = ("LIMIT", 0, PAGE_LANES)
        first, behind = f"[{queue}\0", f"({queue}\1"
        number, found, freed = answered(
            (
                yield [
                    Command.of("ZCOUNT", lanes, "-inf", now_us),
                    Command.of("ZRANGEBYSCORE", lanes, "-inf", now_us, "WITHSCORES", *page),
                    Command.of("ZRANGEBYLEX", self._keys.freed_lanes, first, behind, *page),
                ]
            )
        )
        since = {to_text(lane): moment for lane, moment in members_with_scores(found)}
        # Those found stand for all that may go; those freed come beside them.
        share = number / max(1, len(since))
        names = dict.fromkeys((to_text(each).partition("\0")[2] for each in freed), 1.0)
        names |= dict.fromkeys(since, share)
        if not names:
            return WaitingTasks(held)
        of_lanes = yield from self.held_steps(queue, names)
        used = yield from self.used_steps(names)
        slots = yield from self.used_until_steps(names)
        may_go, going = 0.0, []
        for (lane, lanes_like_it), its_held, its_used, until in zip(
            names.items(), of_lanes, used, slots, strict=True
        ):
            definition = definitions.get(lane.partition(":")[0])
            its_part = its_held
            if definition is not None:
                its_part = definition.may_go(its_held, its_used, until, now_us)
            may_go += its_part * lanes_like_it
            if its_part:
                going.append((since.get(lane, math.inf), lane))
        since_us, lane = min(going, default=(math.inf, ""))
        return WaitingTasks(held, min(total, round(may_go)), lane, since_us)

    def without_permits_call(self, queue: str, worker_id: str) -> Call:
        """Return the call that finds messages of a process without a permit; the reply has the name
        of the limit of each.
        """
        args = [queue, PAGE_FIELDS]
        return self._new_call("limits/without_permits", queue, args, leased=worker_id)

    def without_permits_steps(
        self, queue: str, most: int | None = None
    ) -> Steps[list[tuple[str, str]]]:
        """Return leased messages of limits that have no permit: worker id and limit of each.

        Looks at the first messages of all processes or, with *most*, of so many drawn at random.
        """
        key = self._keys.queue(queue)
        worker_ids = yield Command.of("ZRANGE", key.leases, 0, -1)
        if most is not None:
            worker_ids = random.sample(worker_ids, min(most, len(worker_ids)))
        names = [*map(to_text, worker_ids)]
        found = answered((yield [self.without_permits_call(queue, name) for name in names]))
        return [
            (name, to_text(limit))
            for name, limits in zip(names, found, strict=True)
            for limit in limits
        ]

    def ahead_command(self, queue: str, lane: str, step: int, due_ms: int, name: str) -> Command:
        """Return the command that counts the held entries of a queue that are before an entry in
        its lane.
        """
        first, _ = range_of_lane(lane)
        return _count(
            self._keys.queue(queue).held, (first, b"(" + held_member(lane, step, due_ms, name))
        )

    def ahead(self, *entry: Any) -> int:
        """Return the number of :meth:`ahead_command`."""
        [found] = answered(self._runner.run_all([self.ahead_command(*entry)]))
        return cast(int, found)

    def is_held(self, queue: str, lane: str, step: int, due_ms: int, name: str) -> bool:
        """Return whether an entry is in its lane, though its name may be paused by now."""
        member = held_member(lane, step, due_ms, name)
        return self._runner.client.zscore(self._keys.queue(queue).held, member) is not None

    def first_held(self, queue: str, lane: str) -> bytes | None:
        """Return the first held entry of a lane, with its place in the lane; None without one."""
        range_ = range_of_lane(lane)
        held = self._runner.client.zrangebylex(self._keys.queue(queue).held, *range_, 0, 1)
        return cast("bytes", held[0]) if held else None

    def lanes(self, queue: str) -> Iterator[dict[str, float]]:
        """Yield the lanes of a queue in pages, each with the time (µs) of its next try; infinity
        while the lane waits for a permit. A lane may come twice.
        """
        cursor, name = 0, self._keys.queue(queue).lanes
        while True:
            cursor, found = self._runner.client.zscan(name, cursor, count=PAGE_LANES)
            if found:
                yield {to_text(lane): moment for lane, moment in found}
            if not cursor:
                return


def _is_other_rate(before: StoredLimit, now: StoredLimit) -> bool:
    """Return whether a limit has another rate or burst than before, so that its used slots do not
    count.
    """
    former, definition = before.definition, now.definition
    if before == StoredLimit() or definition is None or not definition.interval_us:
        return False
    return former is None or former[:2] != definition[:2]


def _count(key: str, range_: tuple[bytes, bytes]) -> Command:
    """Return the command that counts the members of a sorted set in a lexicographic range."""
    return Command.of("ZLEXCOUNT", key, *range_)
