"""The ledger of ``test_faults_counters.py`` agrees with the counters, and finds a wrong one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.model.totals import COUNTERS, REASONS
from celery_delayq.store.keys import Keys
from tests.lua.bench import DEFAULT, QUEUE, Bench, labelled
from tests.support.faults.journal import Journal

NAMES = (*COUNTERS, *(f"dead:{reason}" for reason in REASONS))


@pytest.fixture
def journal(delayq_redis_factory: Callable[..., EmbeddedRedis]) -> Callable[[], Journal]:
    """Read the log of a server on which every kind of action has happened."""
    server = delayq_redis_factory(appendfsync="always")
    with server.client() as client:
        store = Bench(client, Keys(), DEFAULT)
        store.next_queue()
        store.put(*(labelled(id) for id in ("a", "b", "c", "d")))
        store.cancel("a")
        for id in ("b", "c"):
            store.become_due(id)
        store.promote()
        store.push(b"e", b"f")
        leased = [field for field, _, _ in store.acquire().messages]
        store.ack(leased[0])
        store.requeue(leased[1], counted="requeued")
        store.leases.dead_letter(QUEUE, "me", leased[2], "id", "failed: x")
    server.stop()
    return lambda: Journal(QUEUE).read(server.data_dir)


def test_a_wrong_counter_is_noticed(journal: Callable[[], Journal]) -> None:
    found = journal().compare()
    assert +found == {
        **{"accepted": 6, "promoted": 2, "dropped": 1, "acked": 1, "redelivered": 1},
        "dead:failed": 1,
    }

    for name in NAMES:
        wrong = journal()
        wrong.apply([(b"HINCRBY", b"{q}:totals", name.encode(), b"1")])
        with pytest.raises(AssertionError):
            wrong.compare()
