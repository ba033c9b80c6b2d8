"""An error anywhere between fetch and the start of a task ends this task and nothing else.

One worker of each pool gets tasks that fail at the first call that Celery makes for them, at the
second, and so on, until one has come through. Each is a dead letter, or has run; and the worker has
all of its room.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from celery_delayq import DelayQ
from celery_delayq.testing import POOLS, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.apps import walk_tasks
from tests.integration.conftest import module_app
from tests.support import TIMEOUT
from tests.support.ledger_desk import LedgerDesk
from tests.support.scene import StartWorker

#: By root: more calls than Celery makes below it.
CALLS = {"handler": 60, "process": 30, "accepted": 12}
ROOM = 3
#: What is walked in each pool, whatever Celery calls else.
SITES = {
    "handler celery.worker.strategy:task_message_handler",
    "handler celery.worker.request:__init__",
    "handler celery.worker.state:task_reserved",
    "process celery.worker.worker:_process_task",
    "process celery.worker.request:execute_using_pool",
    "process celery.concurrency.base:apply_async",
    "accepted celery.worker.request:on_accepted",
    "accepted celery.worker.state:task_accepted",
}
#: What is walked in prefork pools beside.
OF_PREFORK = {
    "handler kombu.asynchronous.semaphore:acquire",
    "process billiard.pool:apply_async",
    "process celery.concurrency.asynpool:send_job",
    "process celery.concurrency.asynpool:schedule_writes",
    "process celery.concurrency.asynpool:_write_job",
}


class Walk(LedgerDesk):
    """Workers of this app."""

    module = "walk_tasks"

    def dead(self) -> dict[str, str]:
        """Return why tasks are dead letters."""
        return {str(each.task_id): each.reason for each in DelayQ.of(walk_tasks.app).dead_letters()}

    def wait_over(self, ids: set[str]) -> None:
        """Wait until each task has run or is a dead letter, and nothing is held."""
        wait_until(
            lambda: (
                not all(worker.running for worker in self.workers)
                or (
                    ids <= {*self.ledger.finished(), *self.dead()}
                    and not {*self.unfinished()} - {"dead"}
                )
            ),
            TIMEOUT,
            lambda: (
                f"{sorted(ids - {*self.ledger.finished(), *self.dead()})} to end; "
                f"{ {state: len(each) for state, each in self.unfinished().items()} }; "
                f"{self._logs()}"
            ),
        )


@pytest.fixture
def walk(delayq_redis: RedisUnderTest, delayq_worker: StartWorker) -> Iterator[Walk]:
    url = delayq_redis.server.url_for("delayq+redis")
    with module_app(walk_tasks.app, delayq_redis, url):
        desk = Walk(delayq_worker, delayq_redis.server, delayq_redis.url)
        yield desk
        desk.close()


@pytest.mark.parametrize("pool", POOLS)
def test_an_error_at_any_call_costs_one_task(pool: str, walk: Walk) -> None:
    ids = set()
    for task, (root, calls) in product(("late", "early", "rated"), CALLS.items()):
        for number, error in product(range(1, calls), walk_tasks.ERRORS):
            ids.add(id := f"{root}-{number}-{error}-{task}")
            walk_tasks.app.tasks[f"walk.{task}"].apply_async(task_id=id)

    worker = walk.start(pool, concurrency=ROOM, conf={"worker_prefetch_multiplier": 4}).wait_ready()
    walk.wait_over(ids)

    ran, dead = walk.ledger.starts(), walk.dead()
    assert {id for id in ids if id in ran and id in dead} == set()
    assert {id: times for id, times in ran.items() if times > 1} == {}
    walked = {site.decode() for site in walk.results.hkeys("sites")}
    wanted = SITES | (OF_PREFORK if pool == "prefork" else set())
    assert wanted - walked == set()
    for root, calls in CALLS.items():  # there is no call that was not walked
        assert f"{root}-{calls - 1}-plain-late" in ran
    assert worker.running
    assert worker.log.count(" ready.") == 1
    has_its_room(walk, pool, worker.hostname)


@pytest.mark.parametrize("pool", POOLS)
def test_an_argument_that_no_child_can_have_costs_one_task(pool: str, walk: Walk) -> None:
    for kind in walk_tasks._KINDS:
        for number in range(4):
            walk_tasks.takes.apply_async((kind,), task_id=f"{kind}-{number}")
    ids = {f"{kind}-{number}" for kind, number in product(walk_tasks._KINDS, range(4))}

    worker = walk.start(
        pool,
        concurrency=ROOM,
        conf={
            "worker_prefetch_multiplier": 4,
            "broker_transport_options": {"delayq": {"max_deliveries": 1}},
        },
    ).wait_ready()
    walk.wait_over(ids)

    reasons = {id.partition("-")[0]: reason for id, reason in walk.dead().items()}
    assert set(reasons) == ({*walk_tasks._KINDS} if pool == "prefork" else set())
    if reasons:
        assert reasons["unwritable"] == "not given to the pool: PicklingError: not this one"
        assert reasons["recursive"].startswith("not given to the pool: RecursionError: ")
        assert reasons["lambda"].startswith("not given to the pool: ")
        assert reasons["unreadable"] == "killed its process 2 times"
    assert worker.running
    assert worker.log.count(" ready.") == 1
    has_its_room(walk, pool, worker.hostname)


def has_its_room(walk: Walk, pool: str, hostname: str) -> None:
    """Check that a worker has nothing of what has ended, and runs as many tasks as it may."""
    inspect = walk_tasks.app.control.inspect([hostname], timeout=5)
    answers = wait_until(lambda: inspect._request("walk_left"), TIMEOUT, "an answer")
    left = answers[hostname]
    assert left == dict.fromkeys(left, 0) | {"requests": []}
    ids = [f"room-{number}" for number in range(ROOM)]
    for id in ids:
        walk_tasks.late.apply_async(("gate",), task_id=id)
    walk.wait_started(ids, 1 if pool == "solo" else ROOM)
    walk.open("gate")
    walk.wait_finished(ids)
