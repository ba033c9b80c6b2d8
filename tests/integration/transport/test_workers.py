"""Delayed tasks on real workers of every pool: never early, each as often as on stock."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import chain, chord, group
from kombu import pools
from redis import Redis

from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.testing import FAST_START, POOLS, WorkerProcess, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.conftest import MakeApp
from tests.support.keyspace import snapshot

pytestmark = pytest.mark.each_server

UTC = dt.timezone.utc
TIMEOUT = 60

StartWorker = Callable[..., WorkerProcess]


@pytest.fixture
def tasks(delayq_broker_url: str, delayq_redis: RedisUnderTest) -> Iterator[Any]:
    """The module of tasks, its app pointed at the Redis of this test."""
    from tests.apps import delayq_tasks

    app = delayq_tasks.app
    app.conf.update(broker_url=delayq_broker_url, result_backend=delayq_redis.url)
    yield delayq_tasks
    delayq_tasks.delayq.close()
    app.close()
    app.__dict__.pop("amqp", None)
    app._pool = None
    app._local.backend = None
    pools.reset()


@pytest.fixture(params=POOLS)
def worker(request: pytest.FixtureRequest, delayq_worker: StartWorker) -> WorkerProcess:
    return delayq_worker(
        "tests.apps.delayq_tasks:app",
        pool=request.param,
        extra_args=["--without-gossip", "--without-mingle"],
    )


def runs(redis: RedisUnderTest) -> list[dict[str, Any]]:
    return [json.loads(item) for item in redis.client.lrange("log", 0, -1)]


def held(redis: RedisUnderTest | Redis) -> int:
    """Return how many messages processes hold."""
    client = redis.client if isinstance(redis, RedisUnderTest) else redis
    return sum(client.hlen(key) for key in client.keys("*:leased:*"))


def assert_not_early(run: dict[str, Any]) -> None:
    """A run is not before its ETA, which the sender's countdown made in whole milliseconds."""
    assert run["at"] >= dt.datetime.fromisoformat(run["eta"]).timestamp() - 0.001, run


@pytest.mark.conformance
def test_delayed_tasks_of_all_kinds(
    worker: WorkerProcess, tasks: Any, delayq_redis: RedisUnderTest
) -> None:
    now = dt.datetime.now(UTC)
    results = {
        "countdown": (tasks.add.apply_async((1, 2), countdown=0.4), 3),
        "eta": (tasks.add.apply_async((3, 4), eta=now + dt.timedelta(seconds=0.6)), 7),
        "past": (tasks.add.apply_async((5, 6), eta=now - dt.timedelta(days=1)), 11),
        "at once": (tasks.add.delay(7, 8), 15),
        "retry": (tasks.flaky.apply_async((0.3,), countdown=0.1), "at last"),
        "autoretry": (tasks.backoff.delay(), "at last"),
        "replace": (tasks.replacing.apply_async((9,), countdown=0.1), 10),
        "chain": (chain(tasks.add.s(1, 1), tasks.add.s(2)).apply_async(countdown=0.2), 4),
        "group": (group(tasks.add.s(1, 1), tasks.add.s(2, 2)).apply_async(countdown=0.2), [2, 4]),
        "chord": (
            chord([tasks.add.s(1, 1), tasks.add.s(2, 2)], tasks.total.s()).apply_async(
                countdown=0.2
            ),
            6,
        ),
        "link": (tasks.add.apply_async((1, 1), countdown=0.2, link=tasks.add.s(40)), 2),
        "expires later": (tasks.add.apply_async((1, 9), countdown=0.2, expires=60), 10),
        "priority": (tasks.add.apply_async((2, 9), countdown=0.2, priority=9), 11),
        "yaml": (tasks.add.apply_async((3, 9), countdown=0.2, serializer="yaml"), 12),
        "msgpack": (
            tasks.add.apply_async((4, 9), countdown=0.2, serializer="msgpack", compression="zlib"),
            13,
        ),
        "large": (tasks.size.apply_async(("x" * 1_000_000,), countdown=0.2), 1_000_000),
    }

    got = {name: result.get(timeout=TIMEOUT) for name, (result, _) in results.items()}

    assert got == {name: expected for name, (_, expected) in results.items()}
    expected_runs = 25
    wait_until(lambda: len(runs(delayq_redis)) >= expected_runs, what="the linked task has run")
    done = runs(delayq_redis)
    assert len(done) == expected_runs, sorted(run["task"] for run in done)
    delayed = [run for run in done if run["eta"]]
    assert len(delayed) >= 18
    for run in delayed:
        assert_not_early(run)
    assert [run["retries"] for run in done if run["task"] == "flaky"] == [0, 1, 2]
    wait_until(lambda: not held(delayq_redis), what="all is acknowledged")
    left = {
        key
        for key in snapshot(delayq_redis.client)
        if not key.startswith(
            ("celery-task-meta-", "_kombu.", "chord", "celery-taskset", "delayq:worker_id:")
        )
    }
    kept = {
        "delayq:queues",
        "delayq:clock",
        "delayq:code_versions",
        "delayq:lease_ends",
        "{celery}:leases",
        "{celery}:request_numbers",
    }
    assert left <= {"log", *kept}


def test_what_expires_before_it_is_due_does_not_run(
    delayq_worker: StartWorker, tasks: Any, delayq_redis: RedisUnderTest
) -> None:
    delayq_worker("tests.apps.delayq_tasks:app", pool="solo")
    expired = tasks.add.apply_async((1, 1), countdown=0.5, expires=0.2)
    after = tasks.add.apply_async((2, 2), countdown=0.6)

    assert after.get(timeout=TIMEOUT) == 4

    assert [run["args"] for run in runs(delayq_redis)] == [[2, 2]]
    assert expired.state == "REVOKED"


def test_the_same_id_sent_twice_runs_twice(
    delayq_worker: StartWorker, tasks: Any, delayq_redis: RedisUnderTest
) -> None:
    delayq_worker("tests.apps.delayq_tasks:app", pool="threads")
    for _ in range(2):
        tasks.add.apply_async((1, 1), countdown=0.2, task_id="twice")

    wait_until(lambda: len(runs(delayq_redis)) == 2, what="both have run")


def test_the_transport_alone_is_enough(
    delayq_worker: StartWorker, delayq_redis: RedisUnderTest
) -> None:
    """A worker with the URL and without DelayQ(app) promotes too."""
    from tests.apps.stock_tasks import app

    delayq_worker("tests.apps.stock_tasks:app", pool="prefork")
    with app.connection_for_write(delayq_redis.server.url_for("delayq+redis")) as connection:
        app.send_task("stock.add", (1, 2), countdown=0.3, connection=connection, task_id="alone")

    wait_until(lambda: delayq_redis.client.exists("celery-task-meta-alone"), what="it has run")


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_task_reads_its_eta_with_the_transport_alone(
    make_app: MakeApp, delayq_worker: StartWorker, pool: str
) -> None:
    app = make_app(extension=False)
    delayq_worker("tests.apps.stock_tasks:app", pool=pool, extra_args=FAST_START)
    eta = dt.datetime.now(UTC) + dt.timedelta(seconds=1, microseconds=1)

    delayed, at_once = app.send_task("stock.eta", eta=eta), app.send_task("stock.eta")

    assert (delayed.get(timeout=TIMEOUT), at_once.get(timeout=TIMEOUT)) == (eta.isoformat(), None)


def test_messages_with_an_eta_of_a_stock_producer_move_to_the_schedule(
    delayq_worker: StartWorker, tasks: Any, delayq_redis: RedisUnderTest
) -> None:
    from tests.apps.stock_tasks import app as stock

    with stock.connection_for_write(delayq_redis.url) as connection:
        for n in range(50):
            stock.send_task("add", (n, 0), countdown=3600, connection=connection)
        stock.send_task("add", (0, 1), countdown=3.0, connection=connection, task_id="soon")
        past = dt.datetime(2001, 1, 1, tzinfo=UTC)
        stock.send_task("add", (0, 2), eta=past, connection=connection, task_id="past")
    assert delayq_redis.client.llen("celery") == 52

    delayq_worker("tests.apps.delayq_tasks:app", pool="solo")

    wait_until(lambda: len(runs(delayq_redis)) == 2, what="what is due has run")
    soon = next(run for run in runs(delayq_redis) if run["id"] == "soon")
    assert_not_early(soon)
    assert tasks.delayq.count(task="add") == 50
    wait_until(lambda: not held(delayq_redis), what="no worker holds any of it")


def test_a_message_that_cannot_be_decoded_does_not_stop_the_worker(
    delayq_worker: StartWorker, tasks: Any, delayq_redis: RedisUnderTest
) -> None:
    worker = delayq_worker("tests.apps.delayq_tasks:app", pool="solo")
    garbage = [
        b"not json",
        b"[]",
        b'{"properties": {}}',
        b"\xff\xfe",
        b'{"body": 1}',
        b'{"body": "abc", "headers": {}, "properties": {"delivery_tag": "t", '
        b'"delivery_info": {}, "body_encoding": "base64"}}',
    ]
    for item in garbage:
        delayq_redis.client.lpush("celery", item)

    assert tasks.add.apply_async((1, 2), countdown=0.1).get(timeout=TIMEOUT) == 3

    dead_letters = [
        dead_letter.message for dead_letter in tasks.delayq.store.dead_letters.all("celery")
    ]
    assert len(dead_letters) == len(garbage)
    assert set(garbage[:5]) <= set(dead_letters)
    assert worker.running


def test_one_of_two_workers_may_be_killed_and_nothing_scheduled_is_lost(
    delayq_worker: StartWorker, tasks: Any, delayq_redis: RedisUnderTest
) -> None:
    doomed = delayq_worker("tests.apps.delayq_tasks:app", pool="solo")
    delayq_worker("tests.apps.delayq_tasks:app", pool="solo")
    results = [tasks.add.apply_async((n, 0), countdown=8) for n in range(200)]
    doomed.kill()

    assert [result.get(timeout=TIMEOUT) for result in results] == list(range(200))
    late = [
        run["at"] - dt.datetime.fromisoformat(run["eta"]).timestamp() for run in runs(delayq_redis)
    ]
    assert all(seconds >= -0.001 for seconds in late)


def test_without_ack_emulation_tasks_run_as_on_stock(
    delayq_worker: StartWorker, tasks: Any, delayq_redis: RedisUnderTest
) -> None:
    options = '{"ack_emulation": false}'
    delayq_worker("tests.apps.delayq_tasks:app", pool="solo", env={"TRANSPORT_OPTIONS": options})

    assert tasks.add.apply_async((1, 2), countdown=0.2).get(timeout=TIMEOUT) == 3
    assert tasks.add.delay(3, 4).get(timeout=TIMEOUT) == 7
    assert not held(delayq_redis)


def test_a_countdown_that_waited_in_a_ready_list_is_not_counted_again(
    delayq_worker: StartWorker, tasks: Any, delayq_redis: RedisUnderTest
) -> None:
    """DelayQ(app) came before the change of the URL: its messages carry their countdown."""
    app = tasks.app
    with app.connection_for_write(delayq_redis.url) as connection:
        app.send_task("add", (1, 2), countdown=10, connection=connection, task_id="noted")
    wait_until(lambda: delayq_redis.client.llen("celery"), what="it is in the ready list")
    delayq_worker("tests.apps.delayq_tasks:app", pool="solo")

    wait_until(lambda: runs(delayq_redis), what="it has run")

    [run] = runs(delayq_redis)
    assert_not_early(run)
    due = tasks.delayq.store.client.zscore("{celery}:due", "noted")
    assert due is None
    assert run["at"] - dt.datetime.fromisoformat(run["eta"]).timestamp() < 9.9


def test_acks_survive_a_server_that_closes_idle_connections(
    delayq_worker: StartWorker, tasks: Any, delayq_redis: RedisUnderTest
) -> None:
    delayq_worker("tests.apps.delayq_tasks:app", pool="solo")
    for n in range(3):
        assert tasks.add.apply_async((n, 0), countdown=0.1).get(timeout=TIMEOUT) == n
        wait_until(lambda: not held(delayq_redis), what="it is acknowledged")
        delayq_redis.client.client_kill_filter(_type="normal", skipme=True)
    assert tasks.add.delay(9, 0).get(timeout=TIMEOUT) == 9
    wait_until(lambda: not held(delayq_redis), what="all is acknowledged")


def test_what_a_solo_worker_took_and_did_not_start_goes_back_at_once(
    delayq_worker: StartWorker, tasks: Any, delayq_redis: RedisUnderTest
) -> None:
    for n in range(200):
        tasks.add.delay(n, 0)
    first = delayq_worker("tests.apps.delayq_tasks:app", pool="solo")
    wait_until(lambda: len(runs(delayq_redis)) > 20, what="it is at work")
    first.stop()
    assert not held(delayq_redis)

    delayq_worker("tests.apps.delayq_tasks:app", pool="solo")
    wait_until(lambda: len(runs(delayq_redis)) >= 200, what="the rest has run")
    assert sorted(run["args"][0] for run in runs(delayq_redis)) == list(range(200))


def test_an_ack_that_went_with_an_idle_connection_is_sent_again(
    delayq_worker: StartWorker, tasks: Any, delayq_redis_factory: Callable[..., EmbeddedRedis]
) -> None:
    """The server cuts a connection that is idle for a second; the task takes two."""
    broker = delayq_redis_factory(options={"timeout": 1})
    url = broker.url_for("delayq+redis")
    delayq_worker("tests.apps.stock_tasks:app", pool="prefork", broker_url=url)
    app = tasks.app
    with app.connection_for_write(url) as connection:
        for n in range(2):
            app.send_task("stock.nap", (2.0,), connection=connection, task_id=f"nap-{n}")

    with broker.client() as client:
        for n in range(2):
            assert app.AsyncResult(f"nap-{n}").get(timeout=TIMEOUT) == "rested"
        wait_until(lambda: not held(client), what="both are acknowledged")


def test_a_consumer_without_a_prefetch_limit_takes_one_at_a_time(
    tasks: Any, delayq_redis: RedisUnderTest
) -> None:
    for n in range(10):
        tasks.add.delay(n, 0)
    got: list[Any] = []
    with tasks.app.connection_for_read() as connection:
        channel = connection.channel()
        with tasks.app.amqp.TaskConsumer(channel, on_message=got.append):
            for expected in range(1, 5):
                connection.drain_events(timeout=5)
                assert len(got) == expected
                assert held(delayq_redis) == expected
