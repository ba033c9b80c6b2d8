"""What our workers held when they ended goes back to stock workers too."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.admin import stock_migration
from celery_delayq.admin.stock_migration import to_stock
from celery_delayq.store.keys import Layout
from celery_delayq.store.session import Session
from celery_delayq.testing import ManagedProcess, WorkerProcess, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.conftest import MakeApp, ready
from tests.support import TIMEOUT
from tests.support.cli import CommandLine, times_in
from tests.support.keyspace import snapshot


def test_what_killed_workers_held_goes_back_where_it_was(
    app: Celery, delayq: DelayQ, delayq_redis: RedisUnderTest
) -> None:
    """Leased by two processes, of two queues and two priorities, and two under suspicion."""
    redis = delayq_redis.client
    for n in range(8):
        app.send_task("t", task_id=f"id-{n}", priority=3 * (n % 2))
    app.send_task("t", task_id="other", queue="other")
    app.send_task("t", task_id="later", countdown=3600)
    sent = {key: set(redis.lrange(key, 0, -1)) for key in ("celery", "celery\x06\x163", "other")}
    leases = delayq.store.leases
    leases.acquire("celery", "one", 30.0, "1", 3)
    leases.acquire("celery", "two", 30.0, "9", 2)
    leases.acquire("celery", "two", 30.0, "10", 1)
    leases.acquire("other", "two", 30.0, "11", 1)
    redis.lpush("{celery}:quarantined", b"3\n" + redis.rpop("celery\x06\x163"))
    alone = redis.hget("{celery}:leased:one", "1:3")
    redis.hset("{celery}:leased:one", "1:3", b"0!\n" + alone.removeprefix(b"0\n"))

    dry = list(to_stock(Session(app), dry_run=True))[-1]
    assert (dry.total, dry.ready) == (9, 9)
    delayq.store.register("other")
    assert delayq.stats().leased == 7
    moved = list(to_stock(Session(app)))[-1]

    assert (moved.total, moved.ready, moved.gone, moved.unmovable, moved.leased) == (9, 9, 0, 0, 0)

    def ids(key: str) -> list[str]:
        return [message["headers"]["id"] for message in ready(delayq_redis.client, key)]

    # To run next: what was quarantined, then of each process in the order in which it was leased.
    assert ids("celery") == ["id-4", "id-6", "id-0", "id-2", "later"]
    assert ids("celery\x06\x163") == ["id-5", "id-1", "id-3", "id-7"]
    assert ids("other") == ["other"]
    for key, messages in sent.items():
        assert messages <= set(redis.lrange(key, 0, -1))  # byte for byte
    state = {key for key in snapshot(redis) if not key.startswith("_kombu.")}
    markers = {"{celery}:wake", "{other}:wake"}
    assert state == {*sent, *markers, "delayq:queues"}
    assert list(to_stock(Session(app)))[-1].total == 0


def test_what_is_leased_goes_back_in_batches_to_the_lists_of_its_queue(
    make_app: MakeApp, delayq_redis: RedisUnderTest
) -> None:
    """More than a batch, other priority steps, and neither a lease nor the registry knows it."""
    redis = delayq_redis.client
    options = {"priority_steps": [0, 5], "sep": ":"}
    app = make_app(broker_transport_options=options)
    for n in range(350):
        app.send_task("t", task_id=f"id-{n}", priority=5)
    store = DelayQ.of(app).store
    store.leases.acquire("celery", "me", 30.0, "1", 250)
    redis.delete("{celery}:leases", "delayq:lease_ends", "delayq:queues")

    steps: Any = to_stock(Session(app))
    assert next(steps).total == 250
    next(steps)
    steps.close()
    assert store.leases.leased_fields("celery", "me")
    list(to_stock(Session(app)))

    messages = ready(delayq_redis.client, "celery:5")
    assert [m["headers"]["id"] for m in messages] == [f"id-{n}" for n in range(350)]
    assert not redis.exists("{celery}:leased:me")


@pytest.mark.parametrize("searched", [0, 1000])
def test_cancelled_messages_do_not_go_back(
    app: Celery,
    delayq: DelayQ,
    delayq_redis: RedisUnderTest,
    monkeypatch: pytest.MonkeyPatch,
    searched: int,
) -> None:
    """Many or few of a list, which keeps its order."""
    monkeypatch.setattr(stock_migration, "MAX_SEARCHED_MESSAGES", searched)
    ids = [f"id-{n:03}" for n in range(220)]  # the order of what is due in the same ms
    for id in ids:
        app.send_task("t", task_id=id, countdown=0.01)
    store = delayq.store

    def are_ready() -> bool:
        store.promote("celery", Layout(), 100)
        return not store.scheduled("celery")

    wait_until(are_ready, what="all are ready")
    delayq.cancel_ids(ids[::3], ready=True)
    kept = [id for n, id in enumerate(ids) if n % 3]

    list(to_stock(Session(app)))

    assert [m["headers"]["id"] for m in ready(delayq_redis.client)] == kept
    others = ("_kombu.", "celery-task-meta-")
    keys = {key for key in snapshot(delayq_redis.client) if not key.startswith(others)}
    assert keys == {"celery", "{celery}:wake", "delayq:queues"}


def test_what_a_retry_has_replaced_does_not_go_back(
    app: Celery, delayq: DelayQ, delayq_redis: RedisUnderTest
) -> None:
    app.send_task("t")
    delayq.store.leases.acquire("celery", "me", 30.0, "1", 1)
    delayq_redis.client.hset("{celery}:leased:me", "1:1", "")

    moved = list(to_stock(Session(app)))[-1]

    assert (moved.total, moved.ready, moved.gone) == (1, 0, 1)
    assert ready(delayq_redis.client) == []


def test_an_unreadable_quarantined_becomes_a_dead_letter(
    app: Celery, delayq: DelayQ, delayq_redis: RedisUnderTest
) -> None:
    delayq_redis.client.lpush("{celery}:quarantined", "garbage", b"0\n{}")

    moved = list(to_stock(Session(app)))[-1]

    assert (moved.total, moved.ready, moved.unmovable) == (2, 1, 1)
    assert delayq_redis.client.lrange("celery", 0, -1) == [b"{}"]
    [dead_letter] = delayq.store.dead_letters.all("celery")
    assert (dead_letter.reason, dead_letter.message) == (
        "unreadable quarantined message",
        b"garbage",
    )


def test_what_our_killed_worker_held_is_run_by_a_stock_worker(
    app: Celery, delayq_redis: RedisUnderTest, delayq_worker: Callable[..., WorkerProcess]
) -> None:
    ours = delayq_worker("tests.apps.stock_tasks:app", pool="threads", concurrency=2)
    results = [app.send_task("stock.nap", (60,), task_id=f"id-{n}", priority=n) for n in range(8)]
    wait_until(lambda: ours.log.count("napping") == 2, what="two run")
    ours.kill()

    list(to_stock(Session(app)))

    redis = delayq_redis.client
    lists = ("celery", *(f"celery\x06\x16{step}" for step in (3, 6, 9)))
    waiting = [json.loads(item) for key in lists for item in redis.lrange(key, 0, -1)]
    assert sorted(m["headers"]["id"] for m in waiting) == [result.id for result in results]
    for key in lists:  # they need not nap that long again
        redis.delete(key)
    for n, message in enumerate(waiting):
        message["headers"]["task"] = "stock.add"
        message["body"] = b64encode(json.dumps([[n, 0], {}, {}]).encode()).decode()
        redis.lpush("celery", json.dumps(message))
    delayq_worker("tests.apps.stock_tasks:app", pool="solo", broker_url=delayq_redis.url)
    assert sorted(result.get(timeout=TIMEOUT) for result in results) == list(range(8))


@pytest.mark.full
@pytest.mark.parametrize("ends", ["stops", "killed"])
def test_a_worker_that_has_leases_and_does_not_answer_is_waited_for(
    ends: str,
    app: Celery,
    delayq: DelayQ,
    delayq_redis: RedisUnderTest,
    delayq_worker: Callable[..., WorkerProcess],
) -> None:
    """In warm shutdown, or killed a moment ago."""
    worker = delayq_worker("tests.apps.stock_tasks:app", pool="threads", concurrency=2)
    app.send_task("stock.nap", (600,))
    wait_until(lambda: worker.log.count("napping") == 1, what="it runs")
    if ends == "killed":
        worker.kill()
    else:
        worker.term()
        worker.wait_log("Warm shutdown")
        wait_until(lambda: not app.control.ping(timeout=0.5), what="it answers no more")
    migrate = CommandLine(app)
    [worker_id] = delayq.store.repair.worker_ids_of("celery")

    refused = migrate("migrate", "--to", "stock")

    text = " ".join((refused.out + refused.err).split())
    assert refused.code == 1
    assert f"1 worker has leased tasks: {worker_id} (1 task of celery; at the latest until" in text
    seconds = delayq.store.repair.claimed_seconds(worker_id)
    assert seconds is not None
    [until] = times_in(text)
    now = datetime.fromtimestamp(delayq.store.now_ms() / 1000, timezone.utc)
    assert now < until <= now + timedelta(seconds=3 * 30)
    assert migrate("migrate", "--to", "stock", "--dry-run").code == 0
    assert migrate("migrate", "--to", "stock", "--yes").code == 1
    assert ready(delayq_redis.client) == []
    assert delayq.stats().leased == 1

    worker.kill()
    delayq.store.leases.disclaim(worker_id)  # as Redis does, when the claim has expired
    assert migrate("migrate", "--to", "stock").code == 0
    assert len(ready(delayq_redis.client)) == 1


def test_what_living_workers_of_other_queues_hold_stays_with_them(
    shop: list[str],
    app: Celery,
    delayq: DelayQ,
    delayq_redis: RedisUnderTest,
    delayq_worker: Callable[..., WorkerProcess],
) -> None:
    worker = delayq_worker(
        "tests.apps.stock_tasks:app", pool="threads", concurrency=2, queues=["other"]
    )
    app.send_task("stock.nap", (60,), queue="other")
    wait_until(lambda: worker.log.count("napping") == 1, what="it runs")
    app.send_task("t")
    app.send_task("t", countdown=3600)
    delayq.store.leases.acquire("celery", "killed", 30.0, "1", 1)

    with ManagedProcess([*shop, "migrate", "--to", "stock", "--yes"]) as process:
        assert process.wait() == 1
        assert "2 to ready, 1 belong to processes that sent a heartbeat of late" in " ".join(
            process.log.split()
        )

    assert len(ready(delayq_redis.client)) == 2
    assert [queue.leased for queue in delayq.stats().queues] == [0, 1]
