"""Something that has a unique key, in each place."""

from __future__ import annotations

import pytest

from celery_delayq.model.envelope import Entry
from celery_delayq.store.keys import Layout
from celery_delayq.store.schedule import Store
from tests.lua.conftest import FAR, QUEUE, become_due, labelled, make_ready, put, reserve

KEY = "{q}:unique"

either_scope = pytest.mark.parametrize("scope", ["s", "d"])
where_it_is = pytest.mark.parametrize("place", ["scheduled", "ready", "running"])


def owned(store: Store, place: str, unique: str = "dk", id: str = "old") -> Entry:
    """Make an entry with a key, and bring it to where it is to be."""
    what = labelled(id, FAR + 50, unique=unique)
    if place == "scheduled":
        put(store, what)
    else:
        make_ready(store, what)
    if place == "running":
        assert len(reserve(store).messages) == 1
    return what


def run_all(store: Store) -> list[bytes]:
    """Promote, run and acknowledge all there is; return what ran."""
    ran: list[bytes] = []
    for name in store.client.zrange("{q}:due", 0, -1):
        become_due(store, name.decode())
    while store.promote(QUEUE, Layout(), 100).moved:
        pass
    while reserved := reserve(store, str(900 + len(ran)), who="last").messages:
        ran += [message for _, message, _ in reserved]
        store.leases.ack(QUEUE, "last", [field for field, _, _ in reserved])
    return ran
