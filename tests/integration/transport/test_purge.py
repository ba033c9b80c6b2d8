"""A purge leaves nothing of the messages that it forgets, and keeps all of the leased ones."""

from __future__ import annotations

from hashlib import sha1

from celery import Celery
from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.admin.repair import check
from celery_delayq.model.delivery import split_leased
from celery_delayq.settings import Settings
from celery_delayq.store.store import Store
from celery_delayq.store.stores import Stores
from tests.support.keyspace import snapshot

LEASE = 600.0


def hold(store: Store, queue: str, step: int, message: bytes) -> str:
    """Push a message and lease it; return its field."""
    pushed = store.ready_call(queue)
    pushed.add(step, message)
    store.run(pushed)
    message_id = str(step + 1)
    store.run(store.leases.acquire_call(queue, "me", LEASE, message_id, 1, 4, 0))
    return f"{message_id}:1"


def test_a_purge_forgets_the_counts_of_what_is_gone_and_keeps_those_of_what_is_held(
    app: Celery, delayq: DelayQ, redis: Redis
) -> None:
    store = delayq.store
    store.register("celery")
    store.next_queue()
    fields = [hold(store, "celery", step, b"%d came back" % step) for step in (0, 9)]
    store.leases.requeue("celery", "me", fields, counted="requeued")
    store.run(store.leases.acquire_call("celery", "me", LEASE, "11", 1, 4, 0))
    redis.lpush("{celery}:quarantined", b"0\nalone")
    redis.hset("{celery}:deliveries", sha1(b"alone").hexdigest(), "5 0 0")
    held = redis.hgetall("{celery}:leased:me")

    assert app.control.purge() == 2

    [message] = [split_leased(value)[1] for value in held.values()]
    digest = sha1(message).hexdigest().encode()
    after = snapshot(redis)
    assert after["{celery}:leased:me"] == held
    assert after["{celery}:deliveries"] == {digest: b"0 0 1"}
    *_, report = check(Stores.single(store), Settings())
    assert report.as_dict()["findings"] == []
