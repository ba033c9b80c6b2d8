"""What is left in the broker, by state: whatever its keys hold, ids of tasks are found in it."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, cast

from redis import Redis

#: In the headers of every task message.
_ID = re.compile(rb'"id": ?"([^"]+)"')

#: By what the name of a key ends with, or a part of it; the first that fits.
_STATES = (
    (re.compile(rb"\}:dead$"), "dead"),
    (re.compile(rb"\}:leased:|^unacked$"), "leased"),
    (re.compile(rb"\}:entries$"), "scheduled"),
)
_PAGE = 1000


def left_in(broker: Redis) -> dict[str, set[str]]:
    """Return the ids of all tasks that the broker still has, by state.

    The states are ``scheduled``, ``ready``, ``leased`` and ``dead``.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for key in broker.scan_iter(count=_PAGE):
        for state, value in _values(broker, key):
            found[state].update(ids_in(value))
    return dict(found)


def ready_ids(broker: Redis, queue: str) -> Counter[str]:
    """Return how often each id stands in the ready lists of a queue."""
    found: Counter[str] = Counter()
    for key in broker.scan_iter(count=_PAGE):
        if broker.type(key) == b"list" and not key.endswith(b":wake"):
            name = key.partition(b"\x06\x16")[0].decode()
            if name == queue:
                for value in cast("list[bytes]", broker.lrange(key, 0, -1)):
                    found.update(ids_in(value))
    return found


def ids_in(value: bytes) -> list[str]:
    """Return the id of the task whose message this is; none when it is no message."""
    return [id.decode() for id in _ID.findall(value)]


def _values(broker: Redis, key: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield state and value of everything in *key* that may be a message."""
    kind = cast(bytes, broker.type(key))
    if kind == b"list":
        for item in cast("list[bytes]", broker.lrange(key, 0, -1)):
            yield "ready", item
    elif kind == b"hash":
        state = next((state for name, state in _STATES if name.search(key)), None)
        if state is not None:
            values: Any = broker.hvals(key)
            for item in values:
                yield state, item
