"""What is paused waits, whatever way it came, and goes on in its order; all else goes on."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.errors import UniqueConflict
from celery_delayq.testing import WorkerProcess, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.apps.control_tasks import TIMEOUT, Scene, StartWorker, start, tasks_of
from tests.integration.conftest import MakeApp

#: Within which time an idle worker starts what goes on.
AT_ONCE = 0.9


@pytest.fixture
def app(make_app: MakeApp) -> Celery:
    return tasks_of(make_app())


@pytest.fixture
def delayq(app: Celery) -> DelayQ:
    return DelayQ.of(app)


@pytest.fixture
def scene(delayq_redis: RedisUnderTest) -> Scene:
    return Scene(delayq_redis)


def send(app: Celery, *ids: str, task: str = "work", **options: object) -> list[str]:
    """Send a task for each id, which is also its argument."""
    for id in ids:
        app.tasks[task].apply_async((id,), task_id=id, **options)
    return [*ids]


def states(delayq: DelayQ, ids: list[str]) -> set[str]:
    """Return in which states tasks are."""
    found = [delayq.get(id) for id in ids]
    return {"none" if each is None else each.state for each in found}


def wait_paused_due(delayq: DelayQ, ids: list[str]) -> None:
    """Wait until all of *ids* wait for their task to go on."""
    wait_until(lambda: states(delayq, ids) == {"paused"}, TIMEOUT, lambda: f"{states(delayq, ids)}")


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_a_paused_task_waits_and_others_run(
    app: Celery, delayq: DelayQ, scene: Scene, delayq_worker: StartWorker, pool: str
) -> None:
    start(delayq_worker, pool, concurrency=2)
    send(app, "before")
    scene.wait_runs(1)

    assert delayq.pause(task="work")

    paused = send(app, "due 1", "due 2", countdown=0.1)
    paused += send(app, "at once 1", "at once 2")
    paused += send(app, "urgent", priority=9)
    others = send(app, "other 1", task="other") + send(app, "other 2", task="other", countdown=0.2)
    scene.wait_runs(3)
    wait_paused_due(delayq, paused)
    wait_until(lambda: (scene.ready(), scene.held()) == ([], set()), TIMEOUT, "nothing else")
    assert sorted(scene.runs("id")) == sorted(["before", *others])
    assert delayq.count(task="work") == 5
    assert [each.state for each in delayq.list(task="work")] == ["paused"] * 5

    assert delayq.resume(task="work")

    scene.wait_runs(8)
    scene.wait_empty()
    assert sorted(scene.runs("id")) == sorted(["before", *others, *paused])


def test_what_goes_on_runs_in_order_of_due(
    app: Celery, delayq: DelayQ, scene: Scene, delayq_worker: StartWorker
) -> None:
    """That is the order in which it was sent, for what was to run at once."""
    names = [f"{n:02} {random.randbytes(2).hex()}" for n in range(60)]
    random.shuffle(names)
    delayq.pause(task="work")
    now = scene.now()
    for n, name in enumerate(names[:20]):
        send(app, name, countdown=0.2 + n / 50)
    worker = start(delayq_worker, "solo")
    wait_paused_due(delayq, names[:20])
    scene.wait_past(now + 1)
    at_once = send(app, *names[20:])
    wait_paused_due(delayq, at_once)

    delayq.resume(task="work")

    scene.wait_runs(60)
    assert worker.running
    assert scene.runs("id") == names


def test_what_was_ready_keeps_its_due(
    app: Celery, delayq: DelayQ, scene: Scene, delayq_worker: StartWorker
) -> None:
    """Promoted before the pause, it is not to run after what was due later."""
    [first] = send(app, "first", countdown=60)
    delayq.run_now(first)
    assert scene.ready() == ["first"]
    delayq.pause(task="work")
    [second] = send(app, "second", countdown=0.01)
    scene.wait_past(scene.now() + 0.02)

    start(delayq_worker, "solo")
    wait_paused_due(delayq, [first, second])
    delayq.resume(task="work")

    scene.wait_runs(2)
    assert scene.runs("id") == ["first", "second"]


@pytest.mark.parametrize(
    ("policy", "scope"),
    [("replace", "done"), ("later", "scheduled"), ("keep", "scheduled"), ("error", "done")],
)
def test_unique_tasks_are_paused_due_with_their_key(
    app: Celery, delayq: DelayQ, scene: Scene, delayq_worker: StartWorker, scope: str, policy: str
) -> None:
    task = app.tasks[f"{policy}.{scope}"]
    first = task.delay("k")
    delayq.pause(task=task.name)
    start(delayq_worker, "solo")
    wait_paused_due(delayq, [first.id])
    assert scene.owners() == {"k": first.id}

    if policy == "error":
        with pytest.raises(UniqueConflict):
            task.delay("k")
        last = first
    else:
        last = task.apply_async(("k",), countdown=0.1)
        assert (last.id == first.id) is (policy == "keep")
    wait_paused_due(delayq, [last.id])
    assert scene.owners() == {"k": last.id}
    delayq.resume(task=task.name)

    assert last.get(timeout=TIMEOUT) == "k"
    scene.wait_empty()
    assert scene.runs("id") == [last.id]


@pytest.mark.parametrize(
    "policy",
    ["replace", "later", "keep"],
)
def test_what_has_left_the_schedule_is_paused_due_beside_what_has_its_key_now(
    app: Celery, delayq: DelayQ, scene: Scene, delayq_worker: StartWorker, policy: str
) -> None:
    """Without the pause both would have run: with scope "scheduled" a ready one has no key."""
    task = app.tasks[f"{policy}.scheduled"]
    first = task.delay("k")
    second = task.apply_async(("k",), countdown=0.1)
    delayq.pause(task=task.name)
    start(delayq_worker, "solo")
    wait_paused_due(delayq, [first.id, second.id])
    delayq.resume(task=task.name)

    assert [first.get(timeout=TIMEOUT), second.get(timeout=TIMEOUT)] == ["k", "k"]
    scene.wait_empty()


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_what_was_ready_before_is_not_started_by_a_worker_that_starts_later(
    app: Celery, delayq: DelayQ, scene: Scene, delayq_worker: StartWorker, pool: str
) -> None:
    paused = send(app, "at once", "urgent", priority=9) + send(app, "promoted", countdown=60)
    delayq.run_now("promoted")
    assert len(scene.ready()) == 1
    delayq.pause(task="work")
    send(app, "other", task="other")

    start(delayq_worker, pool)

    scene.wait_runs(1)
    wait_paused_due(delayq, paused)
    assert scene.runs("id") == ["other"]
    delayq.resume(task="work")
    scene.wait_runs(4)
    scene.wait_empty()


def test_a_pause_outlives_all_workers_and_redis(
    make_app: MakeApp,
    scene: Scene,
    delayq_worker: StartWorker,
    delayq_redis_factory: Callable[..., EmbeddedRedis],
) -> None:
    server = delayq_redis_factory(appendonly=True, appendfsync="always")
    url = server.url_for("delayq+redis")
    app = tasks_of(make_app(broker=url))
    delayq = DelayQ.of(app)
    delayq.pause(task="work")
    delayq.pause(queue="aside")
    queues = ["celery", "aside"]
    worker = start(delayq_worker, "threads", broker_url=url, queues=queues)
    paused = send(app, "due", countdown=0.1) + send(app, "at once")
    wait_paused_due(delayq, paused)
    send(app, "aside", queue="aside", task="other")

    worker.kill()
    server.stop()
    server.start()
    start(delayq_worker, "threads", broker_url=url, queues=queues)
    send(app, "other", task="other")
    scene.wait_runs(1)
    controls = delayq.paused()
    assert (set(controls.queues), set(controls.tasks)) == ({"aside"}, {"work"})
    wait_paused_due(delayq, paused)
    assert scene.runs("id") == ["other"]

    delayq.resume(task="work")
    delayq.resume(queue="aside")
    scene.wait_runs(4)
    assert sorted(scene.runs("id")) == ["aside", "at once", "due", "other"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("backlog", "limits"),
    [(5000, {"max_ready": 100}), (1500, {"max_ready": 50, "promote_rate": 750})],
    ids=["max_ready", "max_ready and promote_rate"],
)
def test_a_large_backlog_goes_on_within_the_limits(
    app: Celery,
    delayq: DelayQ,
    scene: Scene,
    delayq_worker: StartWorker,
    backlog: int,
    limits: dict[str, float],
) -> None:
    client = scene.client
    start(delayq_worker, "solo", delayq=limits)
    delayq.pause(task="tick")
    with app.producer_pool.acquire() as producer, producer.batch(max_size=500):
        for n in range(backlog):
            app.tasks["tick"].apply_async((n,), countdown=0.1, producer=producer)
    wait_until(
        lambda: client.zcard("{celery}:paused_due") == backlog, TIMEOUT, "all are paused and due"
    )
    began = scene.now()

    delayq.resume(task="tick")

    most = 0
    while client.zcard("{celery}:due") and scene.now() < began + 60:
        most = max(most, client.llen("celery"))
        time.sleep(0.002)
    took = scene.now() - began
    scene.wait_empty()
    assert limits["max_ready"] / 2 < most <= limits["max_ready"]
    if rate := limits.get("promote_rate"):
        assert took > (backlog / rate) * 0.9


@pytest.mark.parametrize("pool", ["prefork", "solo", "gevent"])
def test_nothing_of_a_paused_queue_is_taken_and_others_go_on(
    app: Celery, delayq: DelayQ, scene: Scene, delayq_worker: StartWorker, pool: str
) -> None:
    delayq.pause(queue="aside")
    start(delayq_worker, pool, queues=["celery", "aside"])
    at_once = send(app, "at once 1", "at once 2", queue="aside")
    later = send(app, "later", queue="aside", countdown=0.1)
    others = send(app, "other 1") + send(app, "other 2", countdown=0.3)
    scene.wait_runs(2)
    assert scene.runs("id") == others
    assert scene.ready("aside") == at_once
    assert scene.scheduled("aside") == [("later", 0)]
    wait_until(lambda: not scene.held(), TIMEOUT, "all is done")

    resumed = scene.now()
    assert delayq.resume(queue="aside")

    scene.wait_runs(5)
    first, *_, last = sorted(scene.runs("at", "id")[2:])
    assert first[0] - resumed < AT_ONCE
    assert last == (last[0], *later)
    assert last[0] - resumed < AT_ONCE
    scene.wait_empty("aside")


def test_idle_workers_wake_when_a_queue_goes_on(
    app: Celery, delayq: DelayQ, scene: Scene, delayq_worker: StartWorker
) -> None:
    start(delayq_worker, "threads")
    start(delayq_worker, "prefork")
    waits = []
    for n in range(3):
        delayq.pause(queue="celery")
        send(app, f"task {n}")
        scene.wait_past(scene.now() + n / 5)
        assert scene.client.llen("log") == n
        resumed = scene.now()
        delayq.resume(queue="celery")
        scene.wait_runs(n + 1)
        waits.append(scene.runs("at")[-1] - resumed)
    assert max(waits) < AT_ONCE, waits


@pytest.mark.full
def test_dispatchers_are_killed_while_tasks_are_paused_and_go_on(
    app: Celery, delayq: DelayQ, scene: Scene, delayq_worker: StartWorker
) -> None:
    start(delayq_worker, "threads", concurrency=4, delayq={"dispatch": False})
    dispatchers: list[WorkerProcess] = [
        start(delayq_worker, "solo", queues=["aside"], wait_ready=False) for _ in range(4)
    ]
    for dispatcher in dispatchers:
        dispatcher.wait_ready()
    ids = [f"task {n}" for n in range(300)]
    for n, id in enumerate(ids):
        send(app, id, countdown=0.2 + n / 200, task="work" if n % 3 else "other")

    while len(dispatchers) > 1:
        for _ in range(6):
            delayq.pause(task="work")
            delayq.pause(queue="celery")
            scene.wait_past(scene.now() + random.random() / 20)
            delayq.resume(queue="celery")
            scene.wait_past(scene.now() + random.random() / 20)
            delayq.resume(task="work")
        delayq.pause(task="work")
        dispatchers.pop().kill()
        delayq.resume(task="work")

    scene.wait_runs(300)
    scene.wait_empty()
    assert sorted(scene.runs("id")) == sorted(ids)
