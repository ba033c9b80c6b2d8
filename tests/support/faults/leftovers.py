"""Find task ids in all keys of the broker, by state."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

from redis import Redis

from tests.support.keyspace import look

#: The id in the headers of a task message.
_ID = re.compile(rb'"id": ?"([^"]+)"')

#: States by the name of a key.
_STATES = (
    (re.compile(rb"\}:dead$"), "dead"),
    (re.compile(rb"\}:leased:|^unacked$"), "leased"),
    (re.compile(rb"\}:(entries|due)$"), "scheduled"),
)


def unfinished_in(broker: Redis) -> dict[str, set[str]]:
    """Return the ids of all tasks that the broker still has, by state.

    The states are ``scheduled``, ``ready``, ``leased`` and ``dead``. An entry or dead letter
    without a message is found by its name.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for key, items in look(broker, "*").items():
        state = next((state for name, state in _STATES if name.search(key)), None)
        if isinstance(items, list):
            for item in items:
                found["ready"].update(ids_in(item))
        elif isinstance(items, dict) and state is not None:
            for field, item in items.items():
                named = None if isinstance(item, float) else ids_in(item)
                # The id is before the NUL of a second name.
                found[state].update(named or [field.partition(b"\0")[0].decode()])
    return dict(found)


def ready_ids(broker: Redis, queue: str) -> Counter[str]:
    """Return how often each id is in the ready lists of a queue."""
    found: Counter[str] = Counter()
    for key, items in look(broker, "*").items():
        if isinstance(items, list) and not key.endswith(b":wake"):
            name = key.partition(b"\x06\x16")[0].decode()
            if name == queue:
                for value in items:
                    found.update(ids_in(value))
    return found


def ids_in(value: bytes) -> list[str]:
    """Return the id of the task of a message; none if the value is no message."""
    return [id.decode() for id in _ID.findall(value)]
