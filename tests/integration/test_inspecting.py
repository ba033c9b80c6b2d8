"""``inspect().scheduled()`` tells what waits in Redis as stock tells what waits in memory."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.testing import FAST_START, WorkerProcess, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.apps.control_tasks import TIMEOUT, Scene, StartWorker, start, tasks_of
from tests.integration.conftest import MakeApp

# Celery's result backend, with the newest redis-py.
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")


@pytest.fixture
def app(make_app: MakeApp) -> Celery:
    return tasks_of(make_app())


@pytest.fixture
def scene(delayq_redis: RedisUnderTest) -> Scene:
    return Scene(delayq_redis)


def answer(app: Celery, worker: WorkerProcess, what: str = "scheduled") -> Any:
    """Return what one worker answers."""
    inspect = app.control.inspect([worker.hostname], timeout=60, limit=1)
    answers = getattr(inspect, what)()
    assert list(answers) == [worker.hostname]
    return answers[worker.hostname]


def ids(entries: list[dict[str, Any]]) -> list[str]:
    return [entry["request"]["id"] for entry in entries]


@pytest.mark.parametrize("pool", ["threads", "prefork", "gevent"])
def test_a_worker_tells_what_is_next_in_its_queues(
    app: Celery, delayq_worker: StartWorker, pool: str
) -> None:
    work = app.tasks["work"]
    worker = start(delayq_worker, pool, queues=["a", "b"])
    other = start(delayq_worker, "solo", queues=["aside", "empty"])
    assert answer(app, worker) == []
    with app.producer_pool.acquire() as producer:
        for n in reversed(range(70)):
            options = {"producer": producer, "task_id": str(n), "countdown": 60 + n}
            work.apply_async((n,), queue="ab"[n % 2], **options)
            work.apply_async((n,), queue="aside", **{**options, "task_id": f"aside {n}"})

    assert ids(answer(app, worker)) == [str(n) for n in range(70)]
    assert ids(answer(app, other)) == [f"aside {n}" for n in range(70)]

    with app.producer_pool.acquire() as producer:
        for n in range(70, 120):
            work.apply_async((n,), queue="a", producer=producer, task_id=str(n), countdown=60 + n)
    assert ids(answer(app, worker)) == [str(n) for n in range(100)]
    app.control.revoke(["0", "3"])
    DelayQ.of(app).reschedule("99", countdown=30)
    assert ids(answer(app, worker)) == [
        "99",
        "1",
        "2",
        *(str(n) for n in range(4, 99)),
        "100",
        "101",
    ]


def types(value: Any) -> Any:
    """Return the shape of an answer; what is told as None may be told as something."""
    return {key: types(each) for key, each in value.items()} if type(value) is dict else type(value)


def test_the_answer_is_like_that_of_stock_celery(
    app: Celery,
    scene: Scene,
    delayq_worker: StartWorker,
    delayq_redis: RedisUnderTest,
) -> None:
    stock = Celery("stock", broker=delayq_redis.url, set_as_current=False)
    stock_worker = delayq_worker(
        "tests.apps.stock_tasks:app",
        pool="solo",
        queues=["stock"],
        broker_url=delayq_redis.url,
        extra_args=FAST_START,
    )
    worker = start(delayq_worker, "solo")
    eta = datetime.now(timezone.utc) + timedelta(seconds=60)
    call: dict[str, Any] = {"kwargs": {"y": [2, {"z": None}]}, "eta": eta, "priority": 3}
    stock.send_task("stock.add", (1,), queue="stock", task_id="stock", **call)
    app.send_task("stock.add", (1,), task_id="ours", **call)
    wait_until(lambda: answer(stock, stock_worker), TIMEOUT, "it is there")

    [theirs], [ours] = answer(stock, stock_worker), answer(app, worker)

    assert answer(app, worker, "scheduled") == [ours]
    assert types(ours).keys() == types(theirs).keys()
    same = ("name", "type", "args", "kwargs", "time_start", "acknowledged", "worker_pid")
    assert {each: ours["request"][each] for each in same} == {
        each: theirs["request"][each] for each in same
    }
    info, their_info = ours["request"].pop("delivery_info"), theirs["request"].pop("delivery_info")
    assert info == {**their_info, "routing_key": "celery"}
    assert ours["request"].keys() == theirs["request"].keys()
    assert datetime.fromisoformat(theirs["eta"]) == eta
    assert timedelta(0) <= datetime.fromisoformat(ours["eta"]) - eta < timedelta(milliseconds=1)
    assert ours["priority"] == 3
    stock.close()


@pytest.mark.parametrize(
    ("args", "kwargs", "told"),
    [
        (("x" * 20_000,), {"y": 1}, None),
        ((), {"y": "é\N{PEAR}"}, ()),
        (({"a": [1, 2.5, None]}, "b"), {}, ()),
    ],
    ids=["huge", "unicode", "nested"],
)
def test_arguments_are_told_as_they_are_unless_they_are_huge(
    app: Celery, delayq_worker: StartWorker, args: Any, kwargs: Any, told: Any
) -> None:
    worker = start(delayq_worker, "solo")
    app.send_task("who.knows", args, kwargs, countdown=60)

    [entry] = answer(app, worker)

    request = entry["request"]
    if told is None:
        assert len(request["args"]) < 2000
        assert request["args"].startswith("('xxx")
        assert request["kwargs"] == "{'y': 1}"
    else:
        assert (request["args"], request["kwargs"]) == ([*args], kwargs)


def test_what_cannot_be_read_does_not_spoil_the_answer(
    app: Celery, scene: Scene, delayq_worker: StartWorker
) -> None:
    worker = start(delayq_worker, "solo")
    app.send_task("work", (1,), task_id="good", countdown=60)
    app.send_task("work", (1,), task_id="bad", countdown=50)
    scene.client.hset("{celery}:entries", "bad", b"\xff nonsense")
    app.send_task("work", (1,), task_id="yaml", countdown=70, serializer="yaml")

    assert ids(answer(app, worker)) == ["bad", "good", "yaml"]


def test_paused_and_revoked_tasks_are_told_of(
    app: Celery, scene: Scene, delayq_worker: StartWorker
) -> None:
    delayq = DelayQ.of(app)
    worker = start(delayq_worker, "solo")
    delayq.pause(task="work")
    app.send_task("work", (1,), task_id="parked")
    app.send_task("work", (1,), task_id="later", countdown=60)
    wait_until(lambda: len(scene.scheduled()) == 2, TIMEOUT, "it is parked")
    app.send_task("other", (1,), task_id="gone", countdown=60)
    app.control.revoke("gone")

    assert sorted(ids(answer(app, worker))) == ["later", "parked"]
    assert answer(app, worker, "revoked") == ["gone"]


def test_a_worker_whose_app_has_no_extension_answers_as_stock(
    delayq_worker: Callable[..., WorkerProcess], app: Celery
) -> None:
    worker = delayq_worker("tests.apps.stock_tasks:app", pool="solo", extra_args=FAST_START)
    app.send_task("stock.add", (1, 2), countdown=60)
    assert answer(app, worker) == []
