"""What is paused waits, whatever way it came, and goes on in its order; all else goes on."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.testing import WorkerProcess, wait_until
from tests.apps.control_tasks import tasks_of
from tests.integration.conftest import MakeApp
from tests.support import TIMEOUT
from tests.support.scene import Control

if TYPE_CHECKING:
    from tests.support.travelling import TravellingControl


def send(control: Control, *ids: str, task: str = "work", **options: object) -> list[str]:
    """Send a task for each id, which is also its argument."""
    for id in ids:
        control.tasks[task].apply_async((id,), task_id=id, **options)
    return [*ids]


def states(control: Control, ids: list[str]) -> set[str]:
    """Return in which states tasks are."""
    found = [control.delayq.get(id) for id in ids]
    return {"none" if each is None else each.state for each in found}


def wait_paused_due(control: Control, ids: list[str]) -> None:
    """Wait until all of *ids* wait for their task to go on."""
    wait_until(
        lambda: states(control, ids) == {"paused"}, TIMEOUT, lambda: f"{states(control, ids)}"
    )


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_a_paused_task_waits_and_others_run(control: Control, pool: str) -> None:
    control.start(pool, concurrency=2)
    send(control, "before")
    control.wait_runs(1)

    assert control.delayq.pause(task="work")

    paused = send(control, "due 1", "due 2", countdown=0.1)
    paused += send(control, "at once 1", "at once 2")
    paused += send(control, "urgent", priority=9)
    others = send(control, "other 1", task="other") + send(
        control, "other 2", task="other", countdown=0.2
    )
    control.wait_runs(3)
    wait_paused_due(control, paused)
    wait_until(
        lambda: (control.ready(), control.leased_ids()) == ([], set()), TIMEOUT, "nothing else"
    )
    assert sorted(control.runs("id")) == sorted(["before", *others])
    assert control.delayq.count(task="work") == 5
    assert [each.state for each in control.delayq.list(task="work")] == ["paused"] * 5

    assert control.delayq.resume(task="work")

    control.wait_runs(8)
    control.wait_empty()
    assert sorted(control.runs("id")) == sorted(["before", *others, *paused])


@pytest.mark.run_by("test")
def test_what_goes_on_runs_in_order_of_due(control: TravellingControl) -> None:
    """That is the order in which it was sent, for what was to run at once."""
    names = [f"{n:02} {random.randbytes(2).hex()}" for n in range(60)]
    random.shuffle(names)
    control.delayq.pause(task="work")
    now = control.now()
    for n, name in enumerate(names[:20]):
        send(control, name, countdown=0.2 + n / 50)
    control.wait_past(now + 1)
    wait_paused_due(control, names[:20])
    at_once = send(control, *names[20:])
    control.run(0.1)
    wait_paused_due(control, at_once)

    control.delayq.resume(task="work")

    control.wait_runs(60)
    assert control.runs("id") == names


@pytest.mark.run_by("test")
def test_what_was_ready_keeps_its_due(control: TravellingControl) -> None:
    """Promoted before the pause, it is not to run after what was due later."""
    [first] = send(control, "first", countdown=60)
    control.delayq.run_now(first)
    assert control.ready() == ["first"]
    control.delayq.pause(task="work")
    [second] = send(control, "second", countdown=0.01)
    control.wait_past(control.now() + 0.02)

    control.run(0)
    wait_paused_due(control, [first, second])
    control.delayq.resume(task="work")

    control.wait_runs(2)
    assert control.runs("id") == ["first", "second"]


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_what_was_ready_before_is_not_started_by_a_worker_that_starts_later(
    control: Control, pool: str
) -> None:
    paused = send(control, "at once", "urgent", priority=9) + send(
        control, "promoted", countdown=60
    )
    control.delayq.run_now("promoted")
    assert len(control.ready()) == 1
    control.delayq.pause(task="work")
    send(control, "other", task="other")

    control.start(pool)

    control.wait_runs(1)
    wait_paused_due(control, paused)
    assert control.runs("id") == ["other"]
    control.delayq.resume(task="work")
    control.wait_runs(4)
    control.wait_empty()


def test_a_pause_outlives_all_workers_and_redis(
    make_app: MakeApp, control: Control, delayq_redis_factory: Callable[..., EmbeddedRedis]
) -> None:
    server = delayq_redis_factory(appendonly=True, appendfsync="always")
    url = server.url_for("delayq+redis")
    control.app = tasks_of(make_app(broker=url))
    delayq = control.delayq
    delayq.pause(task="work")
    delayq.pause(queue="aside")
    queues = ["celery", "aside"]
    worker = control.start("threads", broker_url=url, queues=queues)
    paused = send(control, "due", countdown=0.1) + send(control, "at once")
    wait_paused_due(control, paused)
    send(control, "aside", queue="aside", task="other")

    worker.kill()
    server.stop()
    server.start()
    control.start("threads", broker_url=url, queues=queues)
    send(control, "other", task="other")
    control.wait_runs(1)
    controls = delayq.paused()
    assert (set(controls.queues), set(controls.tasks)) == ({"aside"}, {"work"})
    wait_paused_due(control, paused)
    assert control.runs("id") == ["other"]

    delayq.resume(task="work")
    delayq.resume(queue="aside")
    control.wait_runs(4)
    assert sorted(control.runs("id")) == ["aside", "at once", "due", "other"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("backlog", "limits"),
    [(2000, {"max_ready": 100}), (1500, {"max_ready": 50, "promote_rate": 750})],
    ids=["max_ready", "max_ready and promote_rate"],
)
def test_a_large_backlog_goes_on_within_the_limits(
    control: Control, backlog: int, limits: dict[str, float]
) -> None:
    client = control.client
    control.start("solo", delayq=limits)
    control.delayq.pause(task="tick")
    with control.app.producer_pool.acquire() as producer, producer.batch(max_size=500):
        for n in range(backlog):
            control.tasks["tick"].apply_async((n,), countdown=0.1, producer=producer)
    wait_until(
        lambda: client.zcard("{celery}:paused_due") == backlog, TIMEOUT, "all are paused and due"
    )
    began = control.now()

    control.delayq.resume(task="tick")

    most = 0
    while client.zcard("{celery}:due") and control.now() < began + 60:
        most = max(most, client.llen("celery"))
        time.sleep(0.002)
    took = control.now() - began
    control.wait_empty()
    assert limits["max_ready"] / 2 < most <= limits["max_ready"]
    if rate := limits.get("promote_rate"):
        assert took > (backlog / rate) * 0.9


@pytest.mark.parametrize("pool", ["prefork", "solo", "gevent"])
def test_nothing_of_a_paused_queue_is_taken_and_others_go_on(control: Control, pool: str) -> None:
    control.delayq.pause(queue="aside")
    control.start(pool, queues=["celery", "aside"])
    at_once = send(control, "at once 1", "at once 2", queue="aside")
    later = send(control, "later", queue="aside", countdown=0.1)
    others = send(control, "other 1") + send(control, "other 2", countdown=0.3)
    control.wait_runs(2)
    assert control.runs("id") == others
    assert control.ready("aside") == at_once
    assert control.scheduled("aside") == [("later", 0)]
    wait_until(lambda: not control.leased_ids(), TIMEOUT, "all is done")

    assert control.delayq.resume(queue="aside")

    control.wait_runs(5)
    *_, (_, last) = sorted(control.runs("at", "id")[2:])
    assert [last] == later
    control.wait_empty("aside")


def test_idle_workers_wake_when_a_queue_goes_on(control: Control) -> None:
    control.start("threads")
    control.start("prefork")
    for n in range(3):
        control.delayq.pause(queue="celery")
        send(control, f"task {n}")
        control.wait_past(control.now() + n / 5)
        assert control.client.llen("log") == n
        control.delayq.resume(queue="celery")
        control.wait_runs(n + 1)


@pytest.mark.full
def test_dispatchers_are_killed_while_tasks_are_paused_and_go_on(control: Control) -> None:
    control.start("threads", concurrency=4, delayq={"dispatch": False})
    dispatchers: list[WorkerProcess] = [
        control.start("solo", queues=["aside"], wait_ready=False) for _ in range(4)
    ]
    for dispatcher in dispatchers:
        dispatcher.wait_ready()
    ids = [f"task {n}" for n in range(300)]
    for n, id in enumerate(ids):
        send(control, id, countdown=0.2 + n / 200, task="work" if n % 3 else "other")

    while len(dispatchers) > 1:
        for _ in range(6):
            control.delayq.pause(task="work")
            control.delayq.pause(queue="celery")
            control.wait_past(control.now() + random.random() / 20)
            control.delayq.resume(queue="celery")
            control.wait_past(control.now() + random.random() / 20)
            control.delayq.resume(task="work")
        control.delayq.pause(task="work")
        dispatchers.pop().kill()
        control.delayq.resume(task="work")

    control.wait_runs(300)
    control.wait_empty()
    assert sorted(control.runs("id")) == sorted(ids)
