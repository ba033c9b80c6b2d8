"""Counts of a queue, and its messages."""

from __future__ import annotations

import json

from celery_delayq.model.totals import Totals
from celery_delayq.store.store import Store
from tests.lua.bench import DEFAULT, QUEUE, Bench
from tests.support.totals import present_by, totals_of

#: A message that can be replayed unchanged.
MESSAGE = json.dumps(
    {
        "body": "W10=",
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {
            **{"lang": "py", "task": "t", "id": "a", "shadow": None, "eta": None},
            **{"expires": None, "group": None, "group_index": None, "retries": 1},
            "timelimit": [None, None],
        },
        "properties": {
            "delivery_info": {"exchange": "", "routing_key": "q"},
            **{"priority": 0, "body_encoding": "base64", "delivery_tag": "x"},
        },
    }
).encode()


def counted(store: Store, queue: str = QUEUE) -> dict[str, int]:
    """Return the counters that are not 0."""
    return _shown(totals_of(store.client, queue))


def _shown(totals: Totals) -> dict[str, int]:
    dead = {f"dead:{reason}": number for reason, number in totals.dead_lettered.items()}
    return {name: number for name, number in (totals.counts | dead).items() if number}


def present(store: Store, queue: str = QUEUE) -> int:
    """Return the number of scheduled, ready and leased messages."""
    client, key = store.client, store.keys.queue(queue)
    waiting = sum(client.llen(name) for name in store.keys.ready_lists(queue, DEFAULT))
    held = sum(1 for name in client.keys(key.leased("*")) for value in client.hvals(name) if value)
    return int(client.zcard(key.due) + waiting + client.llen(key.quarantined) + held)


class Counting:
    """Returns the counts since the last call, and checks that the counters add up."""

    def __init__(self, store: Bench) -> None:
        self._store = store
        self._before: dict[str, dict[str, int]] = {}

    def __call__(self, queue: str = QUEUE) -> dict[str, int]:
        totals = totals_of(self._store.client, queue)
        now, before = _shown(totals), self._before.get(queue, {})
        self._before[queue] = now
        assert present_by(totals) == present(self._store, queue)
        found = {name: number - before.get(name, 0) for name, number in now.items()}
        assert min(found.values(), default=0) >= 0
        return {name: number for name, number in found.items() if number}
