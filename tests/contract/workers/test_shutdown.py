"""How workers end: tasks that were not started are requeued at once, and no task runs twice."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pytest

from celery_delayq.testing import POOLS, WorkerProcess, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.apps.ending_tasks import Desk
from tests.support import TIMEOUT
from tests.support.brokers import Broker
from tests.support.scene import StartWorker

LATE = "late"
#: Celery waits for all of it; by then the running tasks are done, on a busy machine too.
SOFT_SHUTDOWN_SECONDS = 6.0


@pytest.fixture
def desk(
    broker: Broker, delayq_worker: StartWorker, delayq_redis: RedisUnderTest
) -> Iterator[Desk]:
    server = delayq_redis.server
    desk = Desk(delayq_worker, server, server.url_for("redis", 1), other=broker)
    yield desk
    desk.close()


def start_in_the_middle_of_a_batch(
    desk: Desk, pool: str, **settings: Any
) -> tuple[WorkerProcess, list[str]]:
    """Return a worker that runs some tasks, has leased others, and has left the rest."""
    # Quick tasks come first, so that the worker leases many at once. On a cluster they are first
    # only in their queue, and some may be left.
    quick = desk.send(30)
    gated = desk.send(16, "gate", acks="mixed")
    ids = quick + gated
    worker = desk.worker(pool, **settings)
    desk.wait_started(gated, 1 if pool == "solo" else 2)
    if pool != "solo":  # solo takes one at a time on a slow machine
        wait_until(lambda: desk.has_leased_more_than(quick), what="it has leased more than it runs")
    assert 0 < desk.count("ready") < len(ids) - len(desk.ledger.finished())
    return worker, ids


def check_what_has_come_back(desk: Desk, ids: Sequence[str]) -> set[str]:
    """Look at the broker right after the end of a worker; return the killed tasks."""
    assert desk.count("leased") == 0
    started = set(desk.started())
    killed = started.intersection(ids) - desk.ledger.finished()
    back = [id for id in ids if id not in started or (id in killed and LATE in id)]
    ready = desk.ready()
    if len(desk.queues) == 1:
        assert ready == back
    else:  # on a cluster, the messages of an abandoned request are requeued on their own
        assert sorted(ready) == sorted(back)
    return killed


def check_the_next_worker_runs_the_rest(
    desk: Desk, ids: Sequence[str], killed: Collection[str] = ()
) -> None:
    again = {id for id in killed if LATE in id}
    desk.open("gate")
    desk.worker("threads")
    desk.wait_done([id for id in ids if id not in killed or id in again], twice=again)


@pytest.mark.parametrize("pool", POOLS)
def test_a_warm_shutdown_gives_back_what_was_not_started(desk: Desk, pool: str) -> None:
    worker, ids = start_in_the_middle_of_a_batch(desk, pool)

    worker.term()
    worker.wait_log("Warm shutdown")
    desk.open("gate")

    assert worker.wait(TIMEOUT) == 0
    assert check_what_has_come_back(desk, ids) == set()
    assert desk.twice() == {}


def test_a_second_term_is_as_warm_as_the_first(desk: Desk) -> None:
    worker, ids = start_in_the_middle_of_a_batch(desk, "prefork")

    worker.term()
    worker.wait_log("Warm shutdown")
    worker.term()
    worker.wait_log(r"(?s)Warm shutdown.*Warm shutdown")
    desk.open("gate")

    assert worker.wait(TIMEOUT) == 0
    assert check_what_has_come_back(desk, ids) == set()
    check_the_next_worker_runs_the_rest(desk, ids)


def what_the_worker_runs(desk: Desk, worker: WorkerProcess) -> set[str]:
    """Return the ids of the running tasks, once the worker has heard of them.

    Celery kills only tasks whose start was reported, and waits for the end of others.
    """
    running = set(desk.started()) - desk.ledger.finished()
    wait_until(
        lambda: running == {each["id"] for each in desk.tell(worker, "active")},
        what="the worker has heard of what runs",
    )
    return running


@pytest.mark.parametrize("first", ["nothing", "TERM"])
def test_a_cold_shutdown_kills_and_gives_back(desk: Desk, first: str) -> None:
    worker, ids = start_in_the_middle_of_a_batch(desk, "prefork")
    running = what_the_worker_runs(desk, worker)

    if first == "TERM":
        worker.term()
        worker.wait_log("Warm shutdown")
    worker.send_signal(signal.SIGQUIT)

    worker.wait(TIMEOUT)
    assert check_what_has_come_back(desk, ids) == running
    check_the_next_worker_runs_the_rest(desk, ids, running)


@pytest.mark.parametrize("call", ["write", "read"])
def test_a_cold_shutdown_may_come_in_a_call_of_the_broker(desk: Desk, call: str) -> None:
    """Celery shuts down in the handler of the signal, and calls the broker there."""
    # With heartbeats RabbitMQ would end what hangs.
    worker, ids = start_in_the_middle_of_a_batch(desk, "prefork", broker_heartbeat=0)
    running = what_the_worker_runs(desk, worker)

    desk.tell(worker, "ending_quit_in", call=call)
    if call == "write":
        worker.term()
    else:
        desk.tell(worker, "ping", reply=False)

    worker.wait(TIMEOUT)
    assert "terminate all running tasks" in worker.log
    assert "UnexpectedFrame" not in worker.log
    assert check_what_has_come_back(desk, ids) == running
    check_the_next_worker_runs_the_rest(desk, ids, running)


def cold(desk: Desk, pool: str, *, in_a_command: bool = False) -> list[str]:
    """Shut a worker down in the middle of a batch; return the tasks that were sent to it."""
    worker, ids = start_in_the_middle_of_a_batch(desk, pool)

    if in_a_command:
        desk.tell(worker, "ending_quit")
    else:
        worker.send_signal(signal.SIGQUIT)
    worker.wait_log("terminate all running tasks")
    if pool == "threads":
        end = time.monotonic() + 1
        while time.monotonic() < end:
            assert desk.count("leased") > 0, "the message of a running task was requeued"
    desk.open("gate")

    worker.wait(TIMEOUT)
    assert desk.twice() == {}
    return ids


@pytest.mark.parametrize("in_a_command", [False, True])
def test_a_cold_shutdown_of_threads_gives_back(desk: Desk, in_a_command: bool) -> None:
    """Celery cannot kill a thread. Its error ends the event loop, unless it is caught before."""
    check_what_has_come_back(desk, cold(desk, "threads", in_a_command=in_a_command))


@pytest.mark.parametrize("pool", ["gevent", "eventlet"])
def test_a_cold_shutdown_of_greenlets_gives_back_what_it_kills(desk: Desk, pool: str) -> None:
    """The worker kills some of the running tasks; which ones depends on timing."""
    ids = cold(desk, pool)

    assert desk.count("leased") == 0
    finished = desk.ledger.finished()
    assert [id for id in ids if id not in {*desk.started(), *desk.ready()}] == []
    assert [id for id in ids if LATE in id and id not in {*finished, *desk.ready()}] == []
    desk.worker("threads")
    desk.wait_finished([id for id in ids if LATE in id])


def test_a_cold_shutdown_of_a_solo_worker_gives_back(desk: Desk) -> None:
    """Celery ends a running task by an error that is not the task's own."""
    worker, ids = start_in_the_middle_of_a_batch(desk, "solo")
    [running] = set(desk.started()) - desk.ledger.finished()

    worker.send_signal(signal.SIGQUIT)

    worker.wait(TIMEOUT)
    assert "raised unexpected: NotImplementedError" in worker.log
    assert check_what_has_come_back(desk, ids) == {running}
    check_the_next_worker_runs_the_rest(desk, ids, {running})


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_soft_shutdown_waits_first(desk: Desk, pool: str) -> None:
    worker, ids = start_in_the_middle_of_a_batch(
        desk, pool, worker_soft_shutdown_timeout=SOFT_SHUTDOWN_SECONDS
    )

    worker.send_signal(signal.SIGQUIT)
    worker.wait_log("Initiating Soft Shutdown")
    desk.open("gate")

    worker.wait(TIMEOUT)
    assert check_what_has_come_back(desk, ids) == set()
    assert desk.twice() == {}


# -- the states of a worker's pool -------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 2])
def test_children_may_be_replaced_after_each_task(desk: Desk, most: int) -> None:
    ids = desk.send(10, acks="mixed")
    desk.worker("prefork", worker_max_tasks_per_child=most)

    desk.wait_done(ids)
    assert max(Counter(run.pid for run in desk.ledger.read()[0]).values()) <= most


def test_a_pool_may_grow_and_shrink(desk: Desk) -> None:
    ids = desk.send(12, "gate", acks="mixed")
    worker = desk.worker("prefork", args=["--autoscale=4,1"], concurrency=1)

    desk.wait_started(ids, 4)
    desk.open("gate")

    desk.wait_done(ids)
    assert worker.running
