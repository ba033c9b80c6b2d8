"""A worker's clock does not move: each way in which one may be there is refused."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from celery import Celery

from celery_delayq.errors import TravelError
from celery_delayq.testing import ManagedProcess, WorkerProcess, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from celery_delayq.testing.travel.traveller import TimeTravel
from tests.support.scene import StartWorker, start_worker

APP = "tests.apps.delayq_tasks:app"


@pytest.fixture
def start_directly(
    delayq_redis: RedisUnderTest, delayq_worker: StartWorker
) -> Iterator[Callable[[str], ManagedProcess]]:
    """Start a process that serves the private server, as a kind of worker or dispatcher."""
    stack = ExitStack()

    def start(kind: str) -> ManagedProcess:
        if kind == "worker":
            return delayq_worker(APP, pool="solo")
        if kind == "worker that does not dispatch":
            return start_worker(delayq_worker, "delayq_tasks", "solo", delayq={"dispatch": False})
        command = [sys.executable, "-m", "celery", "-A", APP, "delayq", "dispatch"]
        url = delayq_redis.server.url_for("delayq+redis")
        process = stack.enter_context(ManagedProcess(command, env={"CELERY_BROKER_URL": url}))
        wait_until(lambda: delayq_redis.client.pubsub_channels("delayq:fleet:*"))
        return process

    with stack:
        yield start


@pytest.mark.parametrize(
    "kind",
    [
        "worker",
        pytest.param("worker that does not dispatch", marks=pytest.mark.full),
        pytest.param("dispatcher", marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize("empty", [False, True])
def test_one_that_is_there_before(
    kind: str,
    empty: bool,
    start_directly: Callable[[str], ManagedProcess],
    delayq_app: Celery,
    delayq_redis: RedisUnderTest,
) -> None:
    process = start_directly(kind)

    with (
        pytest.raises(TravelError, match=r"or a real worker.* this private Redis"),
        TimeTravel(delayq_app, delayq_redis.server, empty=empty),
    ):
        pass
    process.stop()
    with TimeTravel(delayq_app, delayq_redis.server) as again:
        delayq_app.tasks["note"].apply_async(("alone",), countdown=60)
        assert again.travel(minutes=1) == 1


def test_one_that_the_fixture_would_start_meanwhile(
    delayq_worker: Callable[..., WorkerProcess], delayq_time: TimeTravel
) -> None:
    with pytest.raises(TravelError, match="either delayq_time, which runs the tasks itself, or"):
        delayq_worker(APP)


def test_one_that_starts_in_another_way_meanwhile(
    delayq_app: Celery, delayq_redis: RedisUnderTest, delayq_time: TimeTravel
) -> None:
    url = delayq_redis.server.url_for("delayq+redis")
    with WorkerProcess(APP, pool="solo", broker_url=url) as worker:
        for _ in range(2):
            with pytest.raises(TravelError, match=r"or a real worker.* this private Redis"):
                delayq_time.travel(hours=1)
        worker.stop()
    assert delayq_time.drain() == 0
