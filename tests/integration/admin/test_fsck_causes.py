"""Each kind of finding comes from a cause that it names."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Mapping

import pytest
from redis import Redis

from celery_delayq.admin.findings import KINDS, Cause
from celery_delayq.model.envelope import Due
from celery_delayq.periodic import policy
from celery_delayq.periodic.definition import Definition
from celery_delayq.store.keys import Layout
from celery_delayq.store.periodic import EntryWrite
from celery_delayq.store.store import Store
from tests.lua.bench import labelled as limited
from tests.support.drift import FAR, labelled, lease, look, numbers, pause_due, put
from tests.support.leases import ack

Dump = Mapping[bytes, bytes]


def add_periodic(store: Store, name: str) -> None:
    definition = Definition.from_fields(3600, name=name, task="t")
    entry = policy.begin(definition, store.now_ms(), dt.timezone.utc)
    store.periodic.write([EntryWrite(name, "", entry.pack(), entry.next_look_ms)])


def acquire(store: Store, request: str, number: int) -> None:
    assert (
        len(store.leases.acquire("q", "me", 30.0, request, number, has_limits=True).messages)
        == number
    )


def lease_limited(store: Store, request: str) -> None:
    acquired = store.leases.acquire("limited", "me", 30.0, request, 1, has_limits=True)
    assert len(acquired.messages) == 1


def dump_of(redis: Redis) -> Dump:
    return {key: redis.dump(key) or b"" for key in redis.keys("*")}


@pytest.fixture
def dumps(store: Store, redis: Redis) -> tuple[Dump, Dump]:
    """A database with something of each kind, and the same after each of that has changed."""
    pause_due(store, "p1", "p2", "p3", task="paused")
    put(store, labelled("s1"), labelled("s2"), labelled("s2", "second"), labelled("s3"))
    put(store, *(labelled(id, due=5) for id in ("r1", "r2", "r3", "r4")))
    put(store, labelled("r1", "again", due=5))
    store.register("q")
    acquire(store, "1", 3)
    for id in ("d1", "d2"):
        store.dead_letters.add("q", id, "why", b"{}")
    add_periodic(store, "first")
    store.task_limits.announce({"api": "0 1 1 1"})
    store.register("limited")
    lanes = {"l1": "api:a", "l2": "api:a", "l3": "api:b", "l4": "api:b"}
    put(store, *(limited(id, 0, lane=lane) for id, lane in lanes.items()), queue="limited")
    lease_limited(store, "1")
    older = dump_of(redis)

    store.control.cancel("q", Layout(), ["s1", "p1"])
    store.control.reschedule("q", [("s3", Due(FAR + 9), None), ("p2", Due(FAR + 9), None)])
    put(store, labelled("s4"), labelled("s4", "second"))
    pause_due(store, "p4", task="paused")
    ack(store, "q", "me", ["1:1"])
    acquire(store, "2", 2)
    put(store, labelled("s5"), queue="new")
    for queue in ("q", "new"):
        lease(store, "r6", worker_id="you", queue=queue)
    put(store, labelled("r5", due=5), labelled("r5", "again", due=5))
    [first, _] = store.dead_letters.all("q")
    store.dead_letters.delete("q", [(first.id, first.died_ms)], "token")
    store.dead_letters.add("q", "d3", "why", b"{}")
    add_periodic(store, "second")
    ack(store, "limited", "me", ["1:1"])
    store.control.cancel("limited", Layout(), ["l4"])
    put(store, limited("l5", 0, lane="api:c"), queue="limited")
    put(store, *(limited(id, 0, lane="api:d") for id in ("l6", "l7")), queue="limited")
    request = 2
    while store.leases.acquire("limited", "me", 30.0, str(request), 1, has_limits=True).messages:
        request += 1
    assert numbers(look(store)) == {}
    return older, dump_of(redis)


def found_with(store: Store, dump: Dump) -> set[str]:
    """Return the kinds of findings in a database."""
    store.client.flushdb()
    for key, data in dump.items():
        store.client.restore(key, 0, data)
    return {*numbers(look(store))}


def test_what_a_key_causes_that_is_lost_or_was_restored_alone(
    store: Store, dumps: tuple[Dump, Dump]
) -> None:
    older, newer = dumps
    causes: dict[str, set[Cause]] = defaultdict(set)
    for key in newer:
        others = {each: data for each, data in newer.items() if each != key}
        for kind in found_with(store, others):
            causes[kind].add(Cause.LOST_KEY)
        if key in older:
            for kind in found_with(store, {**others, key: older[key]}):
                causes[kind].add(Cause.OLD_KEY)

    keys = {Cause.LOST_KEY, Cause.OLD_KEY}
    declared = {kind: keys & {*each.causes} for kind, each in KINDS.items()}
    assert causes == {kind: its for kind, its in declared.items() if its}
