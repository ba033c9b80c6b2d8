"""From stock Celery to this package and back, with tasks on their way all the time."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.admin.stock_migration import from_stock, to_stock
from celery_delayq.store.session import Session
from celery_delayq.testing import ManagedProcess, WorkerProcess, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.conftest import ready, stored
from tests.support import TIMEOUT
from tests.support.cli import CommandLine
from tests.support.keyspace import snapshot
from tests.support.scene import start_worker

StartWorker = Callable[..., WorkerProcess]


def hold(delayq_redis: RedisUnderTest, start_stock: StartWorker, count: int) -> None:
    """Let a stock worker take *count* messages into its memory, and kill it."""
    worker = start_stock(extra_args=["--prefetch-multiplier=0"])
    wait_until(lambda: delayq_redis.client.hlen("unacked") == count, what="it holds them all")
    worker.kill()


def hold_all(delayq_redis: RedisUnderTest) -> None:
    """Move all that is ready to where a killed stock worker leaves it."""
    for message in ready(delayq_redis.client):
        tag = message["properties"]["delivery_tag"]
        delayq_redis.client.hset("unacked", tag, json.dumps([message, "", "celery"]))
        delayq_redis.client.zadd("unacked_index", {tag: 1})
    delayq_redis.client.delete("celery")


def test_what_a_stock_worker_held_moves_to_the_schedule(
    stock: Celery,
    app: Celery,
    delayq: DelayQ,
    delayq_redis: RedisUnderTest,
    start_stock: StartWorker,
) -> None:
    for n in range(40):
        stock.send_task("stock.add", (n, n), countdown=3600, task_id=f"id-{n}", priority=n % 10)
    hold(delayq_redis, start_stock, 40)

    dry = list(from_stock(Session(app), dry_run=True))[-1]
    assert (dry.total, dry.scheduled, dry.ready) == (40, 40, 0)
    assert delayq_redis.client.hlen("unacked") == 40

    moved = list(from_stock(Session(app)))[-1]

    assert (moved.total, moved.scheduled, moved.ready, moved.unmovable) == (40, 40, 0, 0)
    etas = {m["headers"]["id"]: m["headers"]["eta"] for m in stored(delayq_redis.client)}
    assert etas == dict.fromkeys(f"id-{n}" for n in range(40))
    assert delayq.count(task="stock.add") == 40
    state = snapshot(delayq_redis.client)
    assert "unacked" not in state
    assert "unacked_index" not in state
    assert list(from_stock(Session(app)))[-1].total == 0


def test_a_held_message_without_a_future_eta_goes_to_ready(
    app: Celery, stock: Celery, delayq_redis: RedisUnderTest
) -> None:
    past = dt.datetime(2001, 1, 1, tzinfo=dt.timezone.utc)
    stock.send_task("t", task_id="none")
    stock.send_task("t", task_id="past", eta=past)
    originals = {message["headers"]["id"]: message for message in ready(delayq_redis.client)}
    hold_all(delayq_redis)

    moved = list(from_stock(Session(app)))[-1]

    assert (moved.ready, moved.scheduled) == (2, 0)
    by_id = {m["headers"]["id"]: m for m in ready(delayq_redis.client)}
    assert by_id["none"] == originals["none"]
    assert by_id["past"]["headers"]["eta"] is None


def test_what_cannot_be_read_or_has_no_queue_is_left(
    app: Celery, delayq_redis: RedisUnderTest
) -> None:
    whole = {"headers": {}, "properties": {"delivery_tag": "t", "delivery_info": {}}}
    held = {
        "garbage": b"not json",
        "short": b"[]",
        "no-queue": json.dumps([whole, "nowhere", "no.key"]).encode(),
    }
    delayq_redis.client.hset("unacked", mapping=held)

    moved = list(from_stock(Session(app)))[-1]

    assert (moved.unmovable, moved.done, moved.total) == (3, 3, 3)
    assert delayq_redis.client.hgetall("unacked") == {k.encode(): v for k, v in held.items()}


def test_the_schedule_goes_back_as_stock_messages(
    app: Celery, stock: Celery, delayq: DelayQ, delayq_redis: RedisUnderTest
) -> None:
    eta = dt.datetime(2100, 1, 1, tzinfo=dt.timezone.utc)
    headers = {"big": 12345678901234567, "empty": []}
    for n in range(30):
        app.send_task("stock.add", (n, 0), eta=eta, task_id=f"id-{n}", headers=headers)
    app.send_task("stock.add", (0, 0), eta=eta, task_id="urgent", priority=9, queue="other")
    assert list(to_stock(Session(app), dry_run=True))[-1].ready == 31
    assert delayq.count() == 31

    moved = list(to_stock(Session(app)))[-1]

    assert (moved.total, moved.ready, moved.unmovable) == (31, 31, 0)
    messages = ready(delayq_redis.client)
    assert {m["headers"]["id"] for m in messages} == {f"id-{n}" for n in range(30)}
    for message in messages:
        assert message["headers"]["eta"] == eta.isoformat()
        assert message["headers"]["empty"] == []
        assert message["headers"]["big"] == 12345678901234567
        assert "delayq" not in message["properties"]
    assert [m["headers"]["id"] for m in ready(delayq_redis.client, "other\x06\x169")] == ["urgent"]
    assert delayq.count() == 0
    left = {key for key in snapshot(delayq_redis.client) if not key.startswith("_kombu.")}
    wakes = {"{celery}:wake", "{other}:wake"}
    assert left == {"celery", "other\x06\x169", "delayq:queues", *wakes}


@pytest.mark.parametrize("broken", ["no record", "no record of ours", "no message"])
def test_what_cannot_be_read_stays_in_the_schedule_and_keeps_nobody_busy(
    app: Celery, delayq_redis: RedisUnderTest, broken: str
) -> None:
    redis = delayq_redis.client
    for id in ("whole", "broken"):
        app.send_task("t", task_id=id, countdown=3600)
    if broken == "no record":
        redis.hdel("{celery}:entries", "broken")
    else:
        data = b"garbage" if broken == "no record of ours" else b"1 0 message id t\n{"
        redis.hset("{celery}:entries", "broken", data)

    moved = [*islice(to_stock(Session(app)), 10)]

    assert len(moved) < 10
    assert (moved[-1].ready, moved[-1].unmovable, moved[-1].gone) == (1, 1, 0)
    assert [message["headers"]["id"] for message in ready(delayq_redis.client)] == ["whole"]
    assert redis.zrange("{celery}:due", 0, -1) == [b"broken"]


@pytest.mark.parametrize(
    ("direction", "number", "done"), [(from_stock, 50, 20), (to_stock, 250, 2)]
)
def test_moving_may_be_interrupted_and_repeated(
    app: Celery,
    stock: Celery,
    delayq: DelayQ,
    delayq_redis: RedisUnderTest,
    direction: Any,
    number: int,
    done: int,
) -> None:
    """One after the other there, in batches of a hundred back."""
    for n in range(number):
        app.send_task("t", countdown=3600, task_id=f"id-{n}")
    if direction is from_stock:
        list(to_stock(Session(app)))
        hold_all(delayq_redis)

    steps = direction(Session(app))
    for _ in range(done):
        next(steps)
    steps.close()
    assert 0 < delayq.count() < number
    list(direction(Session(app)))

    ids = sorted(f"id-{n}" for n in range(number))
    where = stored(delayq_redis.client) if direction is from_stock else ready(delayq_redis.client)
    assert sorted(m["headers"]["id"] for m in where) == ids
    assert not delayq_redis.client.exists("unacked")


def test_the_command_line_refuses_while_workers_run_but_for_a_dry_run(
    shop: list[str],
    app: Celery,
    delayq: DelayQ,
    delayq_redis: RedisUnderTest,
    delayq_worker: StartWorker,
) -> None:
    for _ in range(3):
        app.send_task("t", countdown=3600)
    worker = delayq_worker("tests.apps.delayq_tasks:app", pool="solo")
    before = snapshot(delayq_redis.client)

    def migrate(*options: str, code: int) -> str:
        with ManagedProcess([*shop, "migrate", "--to", "stock", *options]) as process:
            assert process.wait() == code, process.log
            return process.log

    dry, refused = migrate("--dry-run", code=0), migrate(code=1)

    assert "would move: 0 to the schedule, 3 to ready" in dry
    assert "Without --dry-run this is refused" in dry
    assert worker.hostname in refused
    assert "would run twice" in refused
    after = snapshot(delayq_redis.client)
    own = ("{celery}:due", "{celery}:entries", "{celery}:tasks", "delayq:next_due")
    assert {key: after[key] for key in own} == {key: before[key] for key in own}

    worker.stop()
    assert "3 to ready" in migrate(code=0)
    assert delayq.count() == 0


@pytest.mark.parametrize(
    ("way", "outcome"), [("--from", "moves it to the schedule"), ("--to", "keeps it in memory")]
)
def test_the_command_line_says_what_becomes_of_etas_in_the_ready_lists(
    app: Celery, stock: Celery, way: str, outcome: str
) -> None:
    app.send_task("t", countdown=3600)
    past = dt.datetime(2001, 1, 1, tzinfo=dt.timezone.utc)
    for n in range(40):
        stock.send_task("t", countdown=3600, priority=n % 10)
    stock.send_task("t", eta=past)
    stock.send_task("t")
    cli = CommandLine(app)

    for options in (["--dry-run"], []):
        ran = cli("migrate", way, "stock", *options)

        assert ran.code == 0
        text = " ".join(ran.out.split())
        assert "40 tasks with a future ETA are in the ready lists" in text
        assert outcome in text


def test_what_a_stock_worker_held_is_adopted_after_its_visibility_timeout(
    stock: Celery,
    delayq: DelayQ,
    delayq_redis: RedisUnderTest,
    start_stock: StartWorker,
    delayq_worker: StartWorker,
) -> None:
    for n in range(20):
        stock.send_task("stock.add", (n, n), countdown=3600)
    hold(delayq_redis, start_stock, 20)
    options = {
        "visibility_timeout": 1,
        "unacked_restore_limit": 100,
        "unacked_restore_interval": 0.5,
        "unacked_restore_throttle": 1,
    }
    start_worker(delayq_worker, "delayq_tasks", "solo", conf={"broker_transport_options": options})

    # Kombu before 5.7 looks every ten seconds, at ten messages each.
    wait_until(lambda: delayq.count() == 20, timeout=TIMEOUT, what="all are scheduled")
    wait_until(lambda: not delayq_redis.client.hlen("unacked"), what="nobody holds any")


@pytest.mark.full
@pytest.mark.conformance
def test_a_whole_move_there_and_back_runs_each_task_once(
    stock: Celery,
    app: Celery,
    delayq_redis: RedisUnderTest,
    start_stock: StartWorker,
    delayq_worker: StartWorker,
) -> None:
    """Stock producers and a stock worker, then ours, then stock again."""
    results = [
        stock.send_task("stock.add", (n, 0), countdown=3600, task_id=f"id-{n}") for n in range(20)
    ]
    hold(delayq_redis, start_stock, 20)
    assert list(from_stock(Session(app)))[-1].scheduled == 20
    ours = delayq_worker("tests.apps.stock_tasks:app", pool="solo")
    first = app.send_task("stock.add", (100, 0), countdown=0.2)
    assert first.get(timeout=TIMEOUT) == 100
    ours.stop()
    for result in results:
        assert DelayQ.of(app).reschedule(result.id, countdown=2)
    assert list(to_stock(Session(app)))[-1].ready == 20
    start_stock()

    assert [result.get(timeout=TIMEOUT) for result in results] == list(range(20))
