"""Delayed tasks on real workers of every pool: never early, each as often as on stock."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis

from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.testing import POOLS, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.conftest import MakeApp, module_app
from tests.support.keyspace import snapshot
from tests.support.kinds import RUNS, assert_all_kinds_run, assert_not_early
from tests.support.scene import TIMEOUT, AppScene, StartWorker, start_worker

pytestmark = pytest.mark.each_server

UTC = dt.timezone.utc


@pytest.fixture
def tasks(delayq_broker_url: str, delayq_redis: RedisUnderTest) -> Iterator[Any]:
    """The module of tasks, whose app uses the Redis of this test."""
    from tests.apps import delayq_tasks

    with module_app(delayq_tasks.app, delayq_redis, delayq_broker_url):
        yield delayq_tasks


class Delayed(AppScene):
    """Starts workers of the tasks, and shows their runs."""

    module, pool, prefetch = "delayq_tasks", "solo", 4


@pytest.fixture
def scene(tasks: Any, delayq_redis: RedisUnderTest, delayq_worker: StartWorker) -> Delayed:
    return Delayed(delayq_redis, tasks.app, delayq_worker)


@pytest.mark.conformance
@pytest.mark.parametrize("pool", POOLS)
def test_delayed_tasks_of_all_kinds(scene: Delayed, tasks: Any, redis: Redis, pool: str) -> None:
    scene.start(pool)
    assert_all_kinds_run(tasks)
    scene.wait_runs(RUNS)
    done = scene.read()
    assert len(done) == RUNS, sorted(run["task"] for run in done)
    delayed = [run for run in done if run["eta"]]
    assert len(delayed) >= 18
    for run in delayed:
        assert_not_early(run)
    assert [run["retries"] for run in done if run["task"] == "flaky"] == [0, 1, 2]
    wait_until(lambda: not scene.held(), what="all is acknowledged")
    results_and_ids = ("celery-task", "_kombu.", "chord", "delayq:worker_id:")
    left = {key for key in snapshot(redis) if not key.startswith(results_and_ids)}
    ours = {f"delayq:{name}" for name in ("queues", "clock", "code_versions", "lease_ends")}
    assert left <= {"log", *ours, "{celery}:leases", "{celery}:request_numbers"}


def test_what_expires_before_it_is_due_does_not_run(scene: Delayed, tasks: Any) -> None:
    scene.start()
    expired = tasks.add.apply_async((1, 1), countdown=0.5, expires=0.2)
    after = tasks.add.apply_async((2, 2), countdown=0.6)

    assert after.get(timeout=TIMEOUT) == 4

    assert scene.runs("args") == [[2, 2]]
    assert expired.state == "REVOKED"


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_task_reads_its_eta_with_the_transport_alone(
    make_app: MakeApp, delayq_worker: StartWorker, pool: str
) -> None:
    app = make_app(extension=False)
    start_worker(delayq_worker, "stock_tasks", pool)
    eta = dt.datetime.now(UTC) + dt.timedelta(seconds=1, microseconds=1)

    delayed, at_once = app.send_task("stock.eta", eta=eta), app.send_task("stock.eta")

    assert (delayed.get(timeout=TIMEOUT), at_once.get(timeout=TIMEOUT)) == (eta.isoformat(), None)


def test_messages_with_an_eta_of_a_stock_producer_move_to_the_schedule(
    scene: Delayed, tasks: Any, delayq_redis: RedisUnderTest
) -> None:
    from tests.apps.stock_tasks import app as stock

    with stock.connection_for_write(delayq_redis.url) as connection:
        for n in range(50):
            stock.send_task("add", (n, 0), countdown=3600, connection=connection)
        stock.send_task("add", (0, 1), countdown=3.0, connection=connection, task_id="soon")
        past = dt.datetime(2001, 1, 1, tzinfo=UTC)
        stock.send_task("add", (0, 2), eta=past, connection=connection, task_id="past")
    assert len(scene.ready()) == 52

    scene.start()

    scene.wait_runs(2)
    soon = next(run for run in scene.read() if run["id"] == "soon")
    assert_not_early(soon)
    assert tasks.delayq.count(task="add") == 50
    wait_until(lambda: not scene.held(), what="no worker holds any of it")


def test_one_of_two_workers_may_be_killed_and_nothing_scheduled_is_lost(
    scene: Delayed, tasks: Any
) -> None:
    doomed = scene.start()
    scene.start()
    results = [tasks.add.apply_async((n, 0), countdown=8) for n in range(200)]
    doomed.kill()

    assert [result.get(timeout=TIMEOUT) for result in results] == list(range(200))
    late = [run["at"] - dt.datetime.fromisoformat(run["eta"]).timestamp() for run in scene.read()]
    assert all(seconds >= -0.001 for seconds in late)


def test_without_ack_emulation_tasks_run_as_on_stock(scene: Delayed, tasks: Any) -> None:
    scene.start(conf={"broker_transport_options": {"ack_emulation": False}})

    assert tasks.add.apply_async((1, 2), countdown=0.2).get(timeout=TIMEOUT) == 3
    assert tasks.add.delay(3, 4).get(timeout=TIMEOUT) == 7
    assert not scene.held()


def test_a_countdown_that_waited_in_a_ready_list_is_not_counted_again(
    scene: Delayed, tasks: Any, delayq_redis: RedisUnderTest
) -> None:
    """DelayQ(app) came before the change of the URL: its messages carry their countdown."""
    app = tasks.app
    with app.connection_for_write(delayq_redis.url) as connection:
        app.send_task("add", (1, 2), countdown=10, connection=connection, task_id="noted")
    assert scene.ready() == ["noted"]
    scene.start()

    scene.wait_runs(1)

    [run] = scene.read()
    assert_not_early(run)
    assert scene.scheduled() == []
    assert run["at"] - dt.datetime.fromisoformat(run["eta"]).timestamp() < 9.9


def test_what_a_solo_worker_took_and_did_not_start_goes_back_at_once(
    scene: Delayed, tasks: Any
) -> None:
    for n in range(200):
        tasks.add.delay(n, 0)
    first = scene.start()
    scene.wait_runs(21)
    first.stop()
    assert not scene.held()

    scene.start()
    scene.wait_runs(200)
    assert sorted(scene.runs("args")) == [[n, 0] for n in range(200)]


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

    for n in range(2):
        assert app.AsyncResult(f"nap-{n}").get(timeout=TIMEOUT) == "rested"
    with broker.client() as client:
        wait_until(lambda: not client.keys("*:leased:*"), what="both are acknowledged")
