"""Owners of a unique key, in each state."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_delayq.model.envelope import Entry
from tests.lua.bench import FAR, QUEUE, Bench, labelled
from tests.support.leases import ack

KEY = "{q}:unique"

either_scope = pytest.mark.parametrize("scope", ["s", "d"])
where_it_is = pytest.mark.parametrize("place", ["scheduled", "ready", "running"])


def owned(store: Bench, place: str, unique: str = "dk", id: str = "old") -> Entry:
    """Store an entry with a key, and bring it to a state."""
    what = labelled(id, FAR + 50, unique=unique)
    bring: dict[str, Callable[[Entry], object]]
    bring = {"scheduled": store.put, "ready": store.make_ready, "running": store.lease}
    bring[place](what)
    return what


def run_all(store: Bench) -> list[bytes]:
    """Promote and acknowledge all messages; return them in their order."""
    ran: list[bytes] = []
    for name in store.client.zrange("{q}:due", 0, -1):
        store.become_due(name.decode())
    while store.promote().moved:
        pass
    while acquired := store.acquire(str(900 + len(ran)), who="last").messages:
        ran += [message for _, message, _ in acquired]
        ack(store, QUEUE, "last", [field for field, _, _ in acquired])
    return ran
