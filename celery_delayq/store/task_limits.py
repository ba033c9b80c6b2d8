"""Limits in Redis: their definitions, and the use of their lanes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from celery_delayq.model.lookup import to_text
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

    def announce(self, definitions: Mapping[str, str]) -> None:
        """Store what the code says of limits."""
        if definitions:
            fields = {f"c{name}": text for name, text in definitions.items()}
            self._runner.client.hset(self._keys.limits, mapping=fields)

    def override(self, name: str, definition: str) -> None:
        """Store what people have set: it counts more than what the code says."""
        self._runner.client.hset(self._keys.limits, f"o{name}", definition)

    def forget(self, name: str, *, of_code: bool = False) -> bool:
        """Remove what people have set or, with *of_code*, what the code said. False: nothing."""
        field = f"{'c' if of_code else 'o'}{name}"
        return bool(self._runner.client.hdel(self._keys.limits, field))

    def try_lanes_steps(self, queue: str, name: str) -> Steps[None]:
        """Have the lanes of a limit tried again, since its definition has changed."""
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
