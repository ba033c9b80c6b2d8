"""Workers and tasks of limits: none is forgotten, and no busy worker keeps one from an idle one."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from celery_delayq import DelayQ, Limit
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.support import TIMEOUT
from tests.support.scene import Control, StartWorker

#: The limit of the task ``other`` in the code of workers, and in that of the test.
OTHER: dict[str, Any] = {"name": "other", "concurrency": 1, "fair": True}
SETTINGS = {"limits": {"other": OTHER}}


def _other(key: str = "", gate: str = "") -> None:
    """Stand for any task."""


@pytest.fixture
def scene(app: Celery, delayq_redis: RedisUnderTest, delayq_worker: StartWorker) -> Control:
    app.task(name="other", limit=Limit(**OTHER), acks_late=True, shared=False)(_other)
    return Control(delayq_redis, app, delayq_worker)


def test_an_idle_worker_runs_what_no_sign_has_told_of(scene: Control, delayq: DelayQ) -> None:
    scene.start(conf=SETTINGS)
    first = scene.tasks["other"].delay("first")
    assert first.get(timeout=TIMEOUT) == "first"
    delayq.pause(queue="celery")
    sent = scene.tasks["other"].delay("second")
    wait_until(lambda: not scene.client.exists("{celery}:lanes_wake"), what="the sign is popped")

    # Only a look at the lanes finds it now.
    with scene.client.pipeline() as pipe:
        pipe.hdel("delayq:control", "qcelery")
        pipe.hincrby("delayq:control", "revision", 1)
        pipe.execute()

    assert sent.get(timeout=TIMEOUT) == "second"


def test_a_worker_that_knew_no_limit_hears_of_lanes(scene: Control, delayq: DelayQ) -> None:
    """Its last reply came before the first limit, and it waits."""
    scene.start()
    assert scene.app.send_task("work", ("before",)).get(timeout=TIMEOUT) == "before"
    delayq.store.task_limits.announce({"other": Limit(**OTHER).definition.text})

    assert scene.tasks["other"].delay("x").get(timeout=TIMEOUT) == "x"


def test_a_busy_worker_leaves_the_task_to_an_idle_one(scene: Control) -> None:
    scene.start(conf=SETTINGS, prefetch=4)
    scene.app.send_task("work", ("busy",), {"gate": "end"})
    scene.wait_runs(1)

    sent = scene.tasks["other"].delay("x")
    scene.start(conf=SETTINGS, prefetch=4)

    assert sent.get(timeout=TIMEOUT) == "x"
    assert scene.runs("key") == ["busy", "x"]
    scene.open("end")


@pytest.mark.parametrize(
    ("pool", "queue"), [("prefork", "celery"), ("threads", "celery"), ("prefork", "aside")]
)
def test_tasks_without_limits_leave_a_place_to_those_of_limits(
    scene: Control, delayq: DelayQ, pool: str, queue: str
) -> None:
    """A worker that always has more tasks than processes would never have a free one."""
    delayq.store.task_limits.announce({"other": Limit(**OTHER).definition.text})
    number = 60
    for n in range(number):
        scene.app.send_task("work", (n,))
    sent = [scene.tasks["other"].apply_async((f"x{n}",), queue=queue) for n in range(3)]

    scene.start(pool, conf=SETTINGS, prefetch=8, queues=["celery", "aside"])

    assert [each.get(timeout=TIMEOUT) for each in sent] == ["x0", "x1", "x2"]
    scene.wait_runs(number + len(sent))
    keys = scene.runs("key")
    assert [key for key in keys if isinstance(key, str)] == ["x0", "x1", "x2"]
    assert keys.index("x2") < number - 10


#: A limit of as many tasks as the pool of a worker runs at once.
WIDE: dict[str, Any] = {"name": "wide", "concurrency": 4}


@pytest.mark.parametrize(
    ("pool", "args"),
    [
        ("gevent", ()),
        pytest.param("eventlet", (), marks=pytest.mark.full),
        pytest.param("threads", (), marks=pytest.mark.full),
        pytest.param("prefork", (), marks=pytest.mark.full),
        pytest.param("prefork", ("--autoscale=4,1",), marks=pytest.mark.full),
        pytest.param("prefork, prefetch disabled", (), marks=pytest.mark.full),
    ],
)
def test_a_worker_runs_as_many_tasks_as_limit_and_pool_allow(
    scene: Control, pool: str, args: tuple[str, ...]
) -> None:
    """Also where a pool grows with its tasks."""
    scene.app.tasks["other"].limit = Limit(**WIDE)
    conf = {"limits": {"other": WIDE}, "worker_disable_prefetch": pool.endswith("disabled")}
    for number in range(6):
        scene.tasks["other"].delay(number, gate="end")

    scene.start(pool.partition(",")[0], conf=conf, concurrency=4, args=[*args])

    scene.wait_runs(4)
    assert scene.client.zcard("delayq:permits") == 4
    scene.open("end")
    scene.wait_runs(6)


def test_a_worker_that_starts_on_a_full_redis_stores_its_limits_once_there_is_room(
    scene: Control, delayq: DelayQ
) -> None:
    sent = scene.tasks["other"].delay("x")
    scene.client.config_set("maxmemory-policy", "noeviction")
    scene.client.config_set("maxmemory", 1)
    try:
        worker = scene.start(conf=SETTINGS, wait_ready=False)
        wait_until(lambda: "refused a call" in worker.log, TIMEOUT, lambda: worker.log)
        assert not scene.client.exists("delayq:limits")
    finally:
        scene.client.config_set("maxmemory", 0)

    assert sent.get(timeout=TIMEOUT) == "x"
    assert delayq.limits.get("other").definition == Limit(**OTHER).definition
