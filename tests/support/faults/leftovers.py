"""What is left in the broker, by state: whatever its keys hold, ids of tasks are found in it."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import cast

from redis import Redis

#: In the headers of every task message.
_ID = re.compile(rb'"id": ?"([^"]+)"')

#: By the name of a key.
_STATES = (
    (re.compile(rb"\}:dead$"), "dead"),
    (re.compile(rb"\}:leased:|^unacked$"), "leased"),
    (re.compile(rb"\}:(entries|due)$"), "scheduled"),
)
_PAGE = 1000


def left_in(broker: Redis) -> dict[str, set[str]]:
    """Return the ids of all tasks that the broker still has, by state.

    The states are ``scheduled``, ``ready``, ``leased`` and ``dead``. Entries and dead letters are
    also known by the names under which they are kept, should there be no message.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for key in broker.scan_iter(count=_PAGE):
        state = next((state for name, state in _STATES if name.search(key)), None)
        kind = cast(bytes, broker.type(key))
        if kind == b"list":
            for item in cast("list[bytes]", broker.lrange(key, 0, -1)):
                found["ready"].update(ids_in(item))
        elif kind == b"hash" and state is not None:
            for field, item in cast("dict[bytes, bytes]", broker.hgetall(key)).items():
                found[state].update(ids_in(item) or _named(field))
        elif kind == b"zset" and state is not None:
            for field in cast("list[bytes]", broker.zrange(key, 0, -1)):
                found[state].update(_named(field))
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


def _named(field: bytes) -> list[str]:
    """Return the id in the name of an entry or a letter, before what tells it from a second one."""
    return [field.partition(b"\0")[0].decode()]
