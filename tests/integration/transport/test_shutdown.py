"""How workers and other consumers on Redis end: nothing runs twice."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from celery_delayq.testing import ManagedProcess, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.apps.ending_tasks import Desk, half_sent
from tests.integration.conftest import Through
from tests.support import SHORT_LEASE, TIMEOUT
from tests.support.proxy import Fault
from tests.support.scene import StartWorker

LATE = "late"
FOR_EVER = "for ever"


@pytest.fixture
def desk(delayq_worker: StartWorker, delayq_redis: RedisUnderTest) -> Iterator[Desk]:
    server = delayq_redis.server
    desk = Desk(delayq_worker, server, server.url_for("redis", 1))
    yield desk
    desk.close()


def test_a_process_killed_with_half_of_its_result_sent_does_not_hold_up_a_warm_shutdown(
    desk: Desk,
) -> None:
    worker = desk.worker("prefork")
    with desk.connection() as connection:
        half_sent.apply_async(("gate",), task_id="half", connection=connection)
    desk.wait_started(["half"], 1)

    worker.term()
    # Then the worker's event loop has ended, and it waits for its processes.
    wait_until(lambda: not desk.redis.pubsub_numpat(), what="the worker consumes no more")
    desk.open("gate")

    assert worker.wait() == 0


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_a_worker_with_20000_scheduled_ends_as_an_idle_one_does(desk: Desk, pool: str) -> None:
    [id] = desk.send(1, countdown=3600)
    due = desk.redis.zscore("{celery}:due", id)
    record = desk.redis.hget("{celery}:entries", id)
    for first in range(0, 20_000, 1000):
        ids = [f"{n}" for n in range(first, first + 1000)]
        desk.redis.zadd("{celery}:due", dict.fromkeys(ids, due))
        desk.redis.hset("{celery}:entries", mapping=dict.fromkeys(ids, record))
    worker = desk.worker(pool)
    worker.wait_log("dispatcher started")
    worker.term()

    assert worker.wait(TIMEOUT) == 0
    assert desk.redis.zcard("{celery}:due") == 20_001


# -- what a worker's pool goes through --------------------------------------------------------


def test_a_pool_may_be_restarted_in_the_middle_of_a_batch(desk: Desk) -> None:
    quick = desk.send(30)
    ids = desk.send(12, "gate", acks="mixed")
    worker = desk.worker("prefork", worker_pool_restarts=True)
    running = desk.wait_started(ids, 2)
    wait_until(desk.redis.pubsub_numpat, what="the worker listens to remote control")

    desk.open("gate")
    desk.tell(worker, "pool_restart", reload=False)

    desk.wait_finished([*quick, *ids])
    desk.wait_empty()
    assert set(desk.twice()) <= {id for id in running if LATE in id}


def test_what_was_taken_from_a_cancelled_queue_goes_back_or_runs(desk: Desk) -> None:
    desk.send(30)
    ids = desk.send(12, "gate", queue="spare")
    others = desk.send(4, "other gate")
    worker = desk.worker("prefork", args=["--queues=celery,spare"])
    desk.wait_started([*ids, *others], 2)

    desk.tell(worker, "cancel_consumer", queue="spare")
    desk.open("gate", "other gate")
    desk.wait_finished(others)

    wait_until(
        lambda: desk.ready("spare") == [id for id in ids if id not in desk.ledger.finished()],
        what="tasks that have not run are requeued, in order",
    )
    desk.tell(worker, "add_consumer", queue="spare")
    desk.wait_done(ids)


def test_what_comes_for_a_queue_that_was_cancelled_meanwhile_goes_back_in_order(
    through: Through, desk: Desk
) -> None:
    proxy, delayq = through()
    quick = desk.send(60)  # so that the worker takes several at once, unless they go slowly
    worker = desk.worker("threads", url=delayq.app.conf.broker_url)
    desk.wait_done(quick)
    ids = desk.send(6, queue="spare")
    late = proxy.on(b"{spare}:leased", Fault.DELAY, seconds=4.0)  # the first request for it

    desk.tell(worker, "add_consumer", queue="spare")
    assert late.fired.wait(TIMEOUT)
    assert desk.leased_ids()
    desk.tell(worker, "cancel_consumer", queue="spare")

    wait_until(lambda: not desk.leased_ids(), what="all messages are requeued")
    assert desk.ready("spare") == ids
    assert not desk.ledger.finished().intersection(ids)


def test_a_task_that_is_revoked_while_it_waits_in_a_worker_does_not_run(desk: Desk) -> None:
    ids = desk.send(6, "gate")
    worker = desk.worker("prefork")
    running = desk.wait_started(ids, 2)
    revoked = next(id for id in ids if id not in running)
    wait_until(lambda: revoked in desk.leased_ids(), what="it waits in the worker")

    desk.tell(worker, "revoke", task_id=revoked)
    desk.open("gate")

    desk.wait_finished([id for id in ids if id != revoked])
    desk.wait_empty()
    assert desk.ledger.starts() == {id: 1 for id in ids if id != revoked}


@pytest.mark.parametrize("again", [False, True])
def test_a_task_over_its_time_limit_runs_again_only_where_the_app_says_so(
    desk: Desk, again: bool
) -> None:
    [slow] = desk.send(1, FOR_EVER, time_limit=4)
    ids = desk.send(6)
    worker = desk.worker("prefork", task_acks_on_failure_or_timeout=not again)
    worker.wait_log("Hard time limit")
    if again:
        wait_until(lambda: desk.ledger.starts()[slow] == 2, what="it runs again")
        desk.open(FOR_EVER)
        desk.wait_finished([slow])

    desk.wait_finished(ids)
    dead = {} if again else {"dead": {slow}}
    wait_until(lambda: desk.unfinished() == dead, what="it is a dead letter, or done")
    assert desk.twice() == ({slow: 2} if again else {})


# -- other consumers --------------------------------------------------------------------------

CONSUMER = """
import os, sys
import celery_delayq
from kombu import Connection, Consumer, Queue
from tests.support import SHORT_LEASE, TIMEOUT

url, how, timeout = sys.argv[1:]
connection = Connection(url, transport_options={"delayq": {"lease": SHORT_LEASE}})
got = []
consumer = Consumer(connection, [Queue("celery")], on_message=got.append, prefetch_count=3)
consumer.consume()
while len(got) < 3:
    connection.drain_events(timeout=float(timeout))
print("has three", flush=True)
sys.stdin.readline()
if how == "raises":
    raise RuntimeError("it dies")
if how == "closes":
    connection.close()
if how == "vanishes":
    os._exit(1)
sys.exit(0)
"""


@pytest.mark.parametrize("how", ["exits", "raises", "closes", "vanishes"])
def test_what_a_consumer_held_comes_back(desk: Desk, how: str) -> None:
    """At once where it ends by itself, after its lease where it is gone before it can."""
    ids = desk.send(5)
    command = [sys.executable, "-c", CONSUMER, desk.url, how, f"{TIMEOUT}"]
    with ManagedProcess(command) as consumer:
        consumer.wait_log("has three")
        consumer.wait(TIMEOUT)

    if how == "vanishes":
        assert desk.leased_ids() == set(ids[:3])
        desk.worker("threads", lease=SHORT_LEASE)
        desk.wait_finished(ids)
        desk.wait_empty()
        assert desk.twice() == {}
    else:
        assert desk.ready() == ids
        assert desk.leased_ids() == set()
