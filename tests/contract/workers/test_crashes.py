"""A task has crashed if it raises an error that is not an `Exception`, or ends its process.

With late acks it runs again, `max_deliveries` times at most, and then becomes a dead letter. With
early acks it becomes a dead letter at once. Its worker goes on.
"""

from __future__ import annotations

import inspect
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from typing import Any

import pytest

from celery_delayq.testing import POOLS, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.apps import crash_tasks
from tests.integration.conftest import module_app
from tests.support import TIMEOUT
from tests.support.brokers import Broker
from tests.support.epolls import strays
from tests.support.scene import AppScene, StartWorker, answer

MAX_DELIVERIES = 2
#: Number of children that die together, and of tasks that end their process.
CHILDREN, DYING = 8, 64

#: Modules with exceptions that are not an `Exception`; RAISED are those that tasks raise here.
RAISING = ("builtins", "asyncio", "celery.exceptions", "greenlet", "gevent", "eventlet")
RAISED = {name for name in crash_tasks.ENDS if name.isidentifier()}
#: The timeouts of pools have the same name.
RAISED |= {"Timeout"}

PREFORK = {"os._exit", "os._exit badly", "SIGKILL"}  # in other pools they end the worker
OF_GEVENT = {"kill of its greenlet"}


def ends_in(pool: str) -> list[str]:
    """Return the ways in which a task can end in a pool."""
    others = (PREFORK if pool != "prefork" else set()) | (OF_GEVENT if pool != "gevent" else set())
    return [name for name in crash_tasks.ENDS if name not in others]


class Crashes(AppScene):
    """Starts workers of these tasks."""

    module, concurrency, prefetch = "crash_tasks", 2, 4

    def counts(self) -> dict[str, int]:
        """Return the number of runs of each task."""
        return dict(Counter(run.decode().partition(" ")[2] for run in self.client.hkeys("runs")))


@pytest.fixture
def crashes(
    broker: Broker, delayq_redis: RedisUnderTest, delayq_worker: StartWorker
) -> Iterator[Crashes]:
    with module_app(crash_tasks.app, delayq_redis, broker.url):
        crash_tasks.app.conf.update(broker.counting)
        yield broker.show(Crashes(delayq_redis, crash_tasks.app, delayq_worker))


def _exceptions() -> set[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # eventlet is deprecated
        modules = [import_module(name) for name in RAISING]
    return {
        value.__name__
        for module in modules
        for _, value in inspect.getmembers(module, inspect.isclass)
        if issubclass(value, BaseException) and not issubclass(value, Exception)
    }


def test_each_exception_that_is_none_is_raised() -> None:
    # A test that forks fails by a warning if its process has imported eventlet.
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        found = process.submit(_exceptions).result()

    assert found - RAISED == set()


@pytest.mark.parametrize("pool", POOLS)
def test_a_task_that_crashes_ends_neither_its_worker_nor_itself_without_end(
    pool: str, crashes: Crashes, broker: Broker
) -> None:
    ends = ends_in(pool)
    for how in ends:
        for task in (crash_tasks.late, crash_tasks.early):
            id = f"{how}, {task.name.rpartition('.')[2]}"
            task.apply_async((how,), task_id=id)
    wanted = {
        **{f"{how}, late": MAX_DELIVERIES + 1 for how in ends},
        **{f"{how}, early": 1 for how in ends},
    }

    worker = crashes.start(pool, conf=broker.counting, delayq={"max_deliveries": MAX_DELIVERIES})
    wait_until(
        lambda: {each.task_id for each in crashes.delayq.dead_letters()} >= wanted.keys(),
        120,
        lambda: (
            f"all to be dead: {wanted.keys() - {*_ids(crashes)}}, {crashes.counts()}\n{worker.log}"
        ),
    )

    assert crashes.counts() == wanted
    assert sorted(_ids(crashes)) == sorted(wanted)
    for task in (crash_tasks.late, crash_tasks.early):
        for number in range(4):
            task.apply_async((), task_id=f"after-{task.name}-{number}")
    wait_until(lambda: len(crashes.counts()) == len(wanted) + 8, TIMEOUT, "others run after that")
    crashes.wait_empty()
    for what in ("reserved", "active"):
        assert answer(crash_tasks.app, worker.hostname, what) == []
    assert worker.running


@pytest.mark.parametrize("task", [crash_tasks.late, crash_tasks.early], ids=["late", "early"])
@pytest.mark.full
def test_children_that_die_at_one_moment_have_each_run_counted(
    task: Any, crashes: Crashes, broker: Broker
) -> None:
    """While a pool handles one dead child, it may not have read another one's report."""
    for number in range(DYING):
        task.apply_async(("os._exit",), task_id=str(number))

    worker = crashes.start(
        "prefork",
        conf=broker.counting,
        delayq={"max_deliveries": MAX_DELIVERIES},
        concurrency=CHILDREN,
        prefetch=1,
    )
    wait_until(
        lambda: len(_ids(crashes)) == DYING, TIMEOUT, lambda: f"all to die: {crashes.counts()}"
    )

    runs = MAX_DELIVERIES + 1 if task is crash_tasks.late else 1
    counts = crashes.counts()
    assert counts.keys() == {str(number) for number in range(DYING)}
    assert {id: count for id, count in counts.items() if count != runs} == {}, worker.log


@pytest.mark.full
def test_a_worker_polls_what_it_has_open_however_its_processes_and_connections_end(
    crashes: Crashes, broker: Broker
) -> None:
    """A new process gets the open connections of the worker."""
    worker = crashes.start("prefork", conf=broker.counting, loglevel="INFO")

    def run(id: str, how: str = "") -> None:
        crash_tasks.early.apply_async((how,), task_id=id)
        wait_until(lambda: id in crashes.counts(), TIMEOUT, lambda: f"{id} to run:\n{worker.log}")

    def check(id: str) -> None:
        run(id)
        wait_until(
            lambda: not strays(worker.pid), TIMEOUT, lambda: f"{strays(worker.pid)}: none left"
        )
        assert answer(crash_tasks.app, worker.hostname, "unregistered") == []

    for how in ends_in("prefork"):
        run(how, how)
        check(f"after {how}")
    broker.lose_connections(crashes)
    wait_until(lambda: broker.is_back(worker), TIMEOUT, lambda: f"connections:\n{worker.log}")
    for number in range(2 * len(broker.queues)):
        check(f"after all, {number}")


def _ids(crashes: Crashes) -> list[Any]:
    return [each.task_id for each in crashes.delayq.dead_letters()]
