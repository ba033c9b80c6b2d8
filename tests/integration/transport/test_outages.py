"""Connections are lost, Redis goes away and comes back: workers go on, each task runs once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import psutil
import pytest
from celery import Celery

from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from celery_delayq.transport.poller import KOMBU_STOPS_POLLING
from tests.apps.ending_tasks import Desk
from tests.support import SHORT_LEASE
from tests.support.proxy import Proxy
from tests.support.scene import StartWorker, answer
from tests.support.stopped import stopped

pytestmark = pytest.mark.each_server

#: Seconds after which every lease that was not kept is over and reclaimed.
BEYOND = 2 * SHORT_LEASE


@pytest.fixture
def broker(delayq_redis_factory: Callable[..., EmbeddedRedis]) -> EmbeddedRedis:
    return delayq_redis_factory()


@pytest.fixture
def proxy(broker: EmbeddedRedis) -> Iterator[Proxy]:
    with Proxy(broker.port) as proxy:
        yield proxy


@pytest.fixture
def desk(
    delayq_worker: StartWorker,
    broker: EmbeddedRedis,
    proxy: Proxy,  # ends after the workers
    delayq_redis: RedisUnderTest,
) -> Iterator[Desk]:
    desk = Desk(delayq_worker, broker, delayq_redis.url)
    yield desk
    desk.close()


def through(proxy: Proxy) -> str:
    return f"delayq+redis://127.0.0.1:{proxy.port}/0"


def start_another_worker(desk: Desk) -> None:
    """Start a worker that has room for whatever is ready, and sees to the queue ``aside``."""
    desk.worker("threads", lease=SHORT_LEASE, concurrency=20, args=["--queues=celery,aside"])


def wait_beyond_a_lease(desk: Desk, queue: str = "aside") -> None:
    """Wait for a delayed task: it runs on time, and leases that were not kept end meanwhile."""
    sent = time.monotonic()
    desk.wait_finished(desk.send(1, queue=queue, countdown=BEYOND))
    assert time.monotonic() - sent >= BEYOND - 0.01


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_tasks_go_on_while_their_worker_loses_its_connections(
    desk: Desk, proxy: Proxy, pool: str
) -> None:
    """Neither they nor what Celery drops from the pool run twice, with another worker there."""
    quick = desk.send(30)
    ids = desk.send(12, "gate")
    worker = desk.worker(pool, url=through(proxy), lease=SHORT_LEASE)
    running = desk.wait_started(ids, 2)
    desk.wait_finished(quick)
    wait_until(lambda: desk.leased_ids().difference(running), what="it holds more than it runs")
    start_another_worker(desk)

    proxy.cut_all()

    if pool != "gevent":  # which waits in its full pool, and sees to its connections after that
        desk.wait_connected(worker, 2)
    wait_beyond_a_lease(desk)
    assert set(running) <= desk.leased_ids()
    desk.open("gate")
    desk.wait_connected(worker, 2)
    desk.wait_done(ids)


def test_a_task_that_a_child_has_and_has_not_told_of_is_not_given_to_others(
    desk: Desk, proxy: Proxy
) -> None:
    """Celery drops it from the pool; the child, here a stopped one, runs it all the same."""
    worker = desk.worker("prefork", url=through(proxy), lease=SHORT_LEASE, concurrency=1)
    desk.wait_finished(desk.send(1))
    desk.wait_empty()  # else the child may not have told yet that it is done
    (child,) = psutil.Process(worker.pid).children()
    child.suspend()
    ids = desk.send(1)
    wait_until(lambda: desk.leased_ids() == set(ids), what="the worker holds the task")
    desk.timers(worker)  # its loop has turned since, and the child has the task

    proxy.cut_all()

    desk.wait_connected(worker, 2)
    start_another_worker(desk)
    wait_beyond_a_lease(desk)
    assert set(ids) <= desk.leased_ids()
    child.resume()
    desk.wait_done(ids)


@pytest.mark.full
def test_children_that_end_after_each_task_go_on_after_losses(desk: Desk, proxy: Proxy) -> None:
    worker = desk.worker(
        "prefork", url=through(proxy), lease=SHORT_LEASE, args=["--max-tasks-per-child=1"]
    )
    ids = []
    for losses in range(1, 4):
        sent = desk.send(10)
        ids += sent
        # These come through the new connection. Before, a worker may connect again without a word.
        desk.wait_started(sent, 5)
        proxy.cut_all()
        desk.wait_connected(worker, 1 + losses)

    desk.wait_finished(ids)
    desk.wait_empty()


@pytest.mark.parametrize("results_away", ["", "away"])
@pytest.mark.parametrize("pool", ["prefork", "gevent", "eventlet"])
def test_tasks_that_are_cancelled_for_a_lost_connection_run_again(
    desk: Desk, proxy: Proxy, pool: str, results_away: str
) -> None:
    ids = desk.send(2, "gate")
    worker = desk.worker(
        pool,
        url=through(proxy),
        lease=10,
        results_away=results_away,
        worker_cancel_long_running_tasks_on_connection_loss=True,
    )
    desk.wait_started(ids, 2)
    # Celery cancels a task only if its main process has heard that the task began.
    with Celery(broker=desk.url, set_as_current=False) as app:
        wait_until(lambda: len(answer(app, worker.hostname, "active")) == 2, what="both are active")

    proxy.cut_all()

    desk.wait_connected(worker, 2)
    wait_until(lambda: len(desk.twice()) == 2, what="they run again")
    desk.open("gate")
    desk.wait_done(ids, twice=ids)
    assert bool(desk.backend_calls()) == bool(results_away)


@pytest.mark.parametrize(("pool", "prefetch"), [("prefork", 1), ("threads", 4)])
def test_a_worker_is_as_before_after_several_losses(
    desk: Desk, proxy: Proxy, pool: str, prefetch: int
) -> None:
    worker = desk.worker(
        pool, url=through(proxy), lease=SHORT_LEASE, worker_prefetch_multiplier=prefetch
    )
    # Whatever is started when it is first needed is there.
    desk.wait_finished(desk.send(20))
    proxy.cut_all()
    desk.wait_connected(worker, 2)
    desk.wait_finished(desk.send(20))
    timers, threads = desk.timers(worker), psutil.Process(worker.pid).num_threads()

    # While it is idle.
    proxy.cut_all()
    desk.wait_connected(worker, 3)
    ids = desk.send(100)

    # In the middle of batches.
    desk.wait_started(ids, 10)
    proxy.cut_all()
    desk.wait_connected(worker, 4)
    desk.wait_finished(ids)
    ids = desk.send(16, "gate")

    # While it may not take more.
    desk.wait_started(ids, 2)
    assert desk.ready()
    proxy.cut_all()
    desk.wait_connected(worker, 5)
    desk.open("gate")
    desk.wait_finished(ids)

    wait_beyond_a_lease(desk, "celery")
    desk.wait_empty()
    assert not {id for id in desk.twice() if id in ids}
    wait_until(lambda: desk.timers(worker) == timers, what="the timers to be as before")
    wait_until(
        lambda: psutil.Process(worker.pid).num_threads() <= threads,
        what=lambda: f"{psutil.Process(worker.pid).num_threads()} threads to be {threads}",
    )


def test_a_connection_that_is_lost_while_nothing_is_asked_costs_nothing(desk: Desk) -> None:
    """The worker has enough to do, and reads its end again and again were it left open."""
    ids = desk.send(6, "gate")
    worker = desk.worker("prefork", lease=SHORT_LEASE, concurrency=1, worker_prefetch_multiplier=8)
    wait_until(lambda: len(desk.leased_ids()) >= 5, what="it has enough to do")
    desk.timers(worker)
    process = psutil.Process(worker.pid)

    desk.redis.client_kill_filter(_type="normal", skipme=True)
    before = process.cpu_times()
    ids += desk.send(1, countdown=1)

    def promoted() -> bool:
        # Before kombu 5.7 it connects anew at once, and may take one more.
        return ids[-1] in desk.ready() or (KOMBU_STOPS_POLLING and ids[-1] in desk.leased_ids())

    wait_until(promoted, what="the delayed task is promoted")
    after = process.cpu_times()

    assert after.user + after.system - before.user - before.system < 0.5
    desk.open("gate")
    desk.wait_done(ids)


@pytest.mark.conformance
def test_redis_is_restarted_while_tasks_run(desk: Desk, broker: EmbeddedRedis) -> None:
    ids = desk.send(12, "gate")
    scheduled = desk.send(5, countdown=1)
    worker = desk.worker("prefork", lease=SHORT_LEASE)
    running = desk.wait_started(ids, 2)

    broker.stop()
    worker.wait_log("Redis is away, lease keeper waits")
    broker.start()

    start_another_worker(desk)
    wait_beyond_a_lease(desk)
    assert set(running) <= desk.leased_ids()
    desk.open("gate")
    desk.wait_connected(worker, 2)
    desk.wait_done([*ids, *scheduled])


def test_scripts_are_forgotten_under_load(desk: Desk) -> None:
    desk.worker("threads")
    desk.worker("prefork")
    ids = []
    for n in range(10):
        ids += desk.send(10, countdown=0.3 if n % 2 else None)
        desk.redis.script_flush()

    desk.wait_done(ids)


@pytest.mark.full
def test_redis_hangs_for_longer_than_a_lease_while_tasks_run(
    desk: Desk, broker: EmbeddedRedis
) -> None:
    ids = desk.send(12, "gate")
    desk.worker("prefork", lease=SHORT_LEASE)
    start_another_worker(desk)
    running = desk.wait_started(ids, 2)

    with stopped(broker.pid):
        time.sleep(BEYOND)

    wait_beyond_a_lease(desk)
    assert set(running) <= desk.leased_ids()
    desk.open("gate")
    desk.wait_done(ids)
