"""Limits in Redis: their definitions, and the use of their lanes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from celery_delayq.model.lookup import to_text
from celery_delayq.store.keys import queue_name
from celery_delayq.store.scan import answered
from celery_delayq.store.scripting.calls import Command, Steps
from celery_delayq.store.scripting.runner import StorePart


class StoredLimit(NamedTuple):
    """The definitions of one limit: what the code says, and what people have set; "" for none.

    The form of a definition is in ``include/lanes.lua``.
    """

    of_code: str = ""
    override: str = ""


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

    def announce(self, definitions: Mapping[str, str]) -> dict[str, str]:
        """Store what the code says of limits. Return the former definitions that were others."""
        if not definitions:
            return {}
        names = [*definitions]
        found = self._runner.client.hmget(self._keys.limits, [f"c{name}" for name in names])
        before = {
            n: to_text(each) for n, each in zip(names, found, strict=True) if each is not None
        }
        # Only what is new: a worker that connects again to a full server must not stop.
        new = {f"c{n}": text for n, text in definitions.items() if before.get(n) != text}
        if new:
            self._runner.client.hset(self._keys.limits, mapping=new)
        return {name: former for name, former in before.items() if f"c{name}" in new}

    def override(self, name: str, definition: str) -> None:
        """Store what people have set: it counts more than what the code says."""
        self._runner.client.hset(self._keys.limits, f"o{name}", definition)

    def forget(self, name: str, *, of_code: bool = False) -> bool:
        """Remove what people have set or, with *of_code*, what the code said. False: nothing."""
        field = f"{'c' if of_code else 'o'}{name}"
        return bool(self._runner.client.hdel(self._keys.limits, field))

    def try_lanes(self, names: Iterable[str]) -> None:
        """Have the lanes of limits tried again, since their definitions have changed."""
        queues = [*map(queue_name, self._runner.client.hkeys(self._keys.queues))]
        steps = [self.try_lanes_steps(queue, name) for name in names for queue in queues if queue]
        for result in self._runner.run_each(steps):
            if isinstance(result, Exception):
                raise result

    def try_lanes_steps(self, queue: str, name: str) -> Steps[None]:
        """Have the lanes of a limit in one queue tried again."""
        after = b""
        while True:
            after = yield self._new_call("limits/try_lanes", queue, [name, after])
            if not after:
                return

    def used_steps(self, lanes: Iterable[str]) -> Steps[list[int]]:
        """Return the number of leased messages of each lane."""
        calls = [
            Command.of("ZLEXCOUNT", self._keys.permits, f"[{lane}\0", f"({lane}\1")
            for lane in lanes
        ]
        return [int(each) for each in answered((yield calls))]
