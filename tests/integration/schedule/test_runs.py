"""The history tells of each run that has ended, once: how, when and where."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.model.history import Run
from celery_delayq.testing import WorkerProcess, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.conftest import MakeApp, Through
from tests.support import SHORT_LEASE, TIMEOUT
from tests.support.proxy import Fault
from tests.support.scene import AppScene, StartWorker

ENDINGS = ("", "fail", "retry", "reject", "ignore")
#: In Celery's words, with the reason.
EXPECTED = {
    ("ok", 0, "SUCCESS", ""),
    ("fail", 0, "FAILURE", "ValueError: no more"),
    ("retry", 0, "RETRY", "ValueError: not yet"),
    ("retry", 1, "SUCCESS", ""),
    ("reject", 0, "REJECTED", "not to my taste"),
    ("ignore", 0, "IGNORED", ""),
    ("revoked", 0, "REVOKED", "revoked"),
    ("expired", 0, "REVOKED", "expired"),
}


class History(AppScene):
    """Starts workers whose runs are in the history."""

    module, concurrency, prefetch = "history_tasks", 2, 4

    def start(self, pool: str = "threads", **options: Any) -> WorkerProcess:
        """Start a worker with the option *history*; *late* is when it acknowledges."""
        history, late = options.pop("history", 10_000), options.pop("late", True)
        conf = {"task_acks_late": late, **options.pop("conf", {})}
        own = {"history": history, "lease": SHORT_LEASE, "registry_refresh": 1.0}
        return super().start(pool, conf=conf, delayq=own, **options)

    def send_each(self) -> None:
        """Send a task for each way to end."""
        for how in ENDINGS:
            self.app.send_task("history.end", (how,), task_id=how or "ok")

    def wait(self, count: int) -> list[Run]:
        """Return the history once it has so many runs."""
        delayq = DelayQ.of(self.app)
        wait_until(
            lambda: len(list(delayq.history())) >= count,
            TIMEOUT,
            lambda: f"{count} runs, there are {list(delayq.history())}",
        )
        return list(delayq.history())


@pytest.fixture
def scene(app: Celery, delayq_redis: RedisUnderTest, delayq_worker: StartWorker) -> History:
    return History(delayq_redis, app, delayq_worker)


@pytest.mark.parametrize("late", [True, False], ids=["late", "early"])
@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "eventlet", "solo"])
def test_each_run_is_in_the_history_once_with_its_end(
    pool: str, late: bool, app: Celery, scene: History
) -> None:
    app.control.revoke("revoked")
    before = datetime.now(timezone.utc) - timedelta(seconds=1)
    app.send_task("history.end", task_id="revoked")
    app.send_task("history.end", task_id="expired", expires=datetime(2020, 1, 1))
    scene.send_each()

    worker = scene.start(pool, late=late)
    runs = scene.wait(len(EXPECTED))
    app.send_task("history.end", task_id="last")
    runs = scene.wait(len(EXPECTED) + 1)

    told = [(run.id, run.retries, run.state, run.reason) for run in runs]
    assert sorted(told) == sorted({*EXPECTED, ("last", 0, "SUCCESS", "")})
    for run in runs:
        assert (run.task, run.queue, run.worker) == ("history.end", "celery", worker.hostname)
        assert run.deliveries == 1
        assert before < run.ended < datetime.now(timezone.utc)
        assert (run.started is None) == (run.state == "REVOKED")
        assert run.started is None or before < run.started <= run.ended
        assert (run.due is None) == (run.retries == 0)
    [again] = [run for run in runs if run.retries]
    assert again.due is not None
    assert again.started is not None
    assert again.promoted is None or again.due <= again.promoted <= again.started


def test_a_run_has_the_time_at_which_a_delayed_task_became_ready(
    delayq: DelayQ, scene: History
) -> None:
    scene.start()
    wait_until(lambda: b"history" in delayq.store.registry().get("celery", b""), what="registered")
    due = datetime.now(timezone.utc) + timedelta(seconds=2.5)
    scene.app.send_task("history.end", eta=due, task_id="a")

    [run] = scene.wait(1)

    assert run.due is not None
    assert run.promoted is not None
    assert run.started is not None
    assert abs(run.due - due) < timedelta(milliseconds=2)
    assert run.due <= run.promoted <= run.started + timedelta(milliseconds=1)


def test_there_is_none_where_it_is_off(app: Celery, scene: History, redis: Redis) -> None:
    scene.start(history=0)
    assert app.send_task("history.end", task_id="a").get(timeout=TIMEOUT) == "done"
    app.send_task("history.end", countdown=0.1, task_id="b").get(timeout=TIMEOUT)

    assert list(DelayQ.of(app).history()) == []
    assert not redis.exists("delayq:history")


@pytest.mark.parametrize("late", [True, False], ids=["late", "early"])
@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_runs_that_end_during_a_warm_shutdown_are_in_the_history(
    pool: str, late: bool, delayq: DelayQ, scene: History
) -> None:
    worker = scene.start(pool, late=late)
    scene.app.send_task("history.nap", (1.5,), task_id="a")
    worker.wait_log("napping")

    worker.stop()

    assert [(run.id, run.state) for run in delayq.history()] == [("a", "SUCCESS")]


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_after_kill_9_the_history_has_exactly_the_acknowledged_runs(
    pool: str, app: Celery, delayq: DelayQ, scene: History
) -> None:
    ids = [f"id-{n}" for n in range(3000)]
    with app.producer_pool.acquire() as producer:
        for id in ids[:-2]:
            app.send_task("history.end", task_id=id, producer=producer, ignore_result=True)
    for id in ids[-2:]:  # it has not ended all of them, however late it is killed
        app.send_task("history.nap", (2 * TIMEOUT,), task_id=id, ignore_result=True)
    worker = scene.start(pool, conf={"task_ignore_result": True})
    scene.wait(100)

    worker.kill()

    told = [run.id for run in delayq.history()]
    assert 100 <= len(told) < len(ids), "it was killed while it worked"
    assert sorted([*told, *scene.ready(), *scene.leased_ids()]) == sorted(ids)


@pytest.mark.parametrize(
    ("late", "script"),
    [
        (True, "leases/ack"),
        (True, "leases/replace"),
        (True, "leases/dead_letter"),
        (False, "history/add"),
    ],
)
def test_a_lost_reply_tells_nothing_twice(
    late: bool, script: str, app: Celery, scene: History, through: Through
) -> None:
    proxy, delayq = through()
    worker = scene.start(late=late, broker_url=delayq.app.conf.broker_url)
    rule = proxy.on(script, Fault.DROP_REPLY)
    scene.send_each()
    assert rule.fired.wait(TIMEOUT)
    runs = scene.wait(len(ENDINGS) + 1)
    app.send_task("history.end", task_id="last")
    wait_until(
        lambda: "last" in {run.id for run in delayq.history()}, TIMEOUT, "the last one is listed"
    )
    worker.stop()

    told = sorted((run.id, run.retries) for run in delayq.history())
    assert told == sorted([*((how or "ok", 0) for how in ENDINGS), ("retry", 1), ("last", 0)])
    assert len(runs) == len(ENDINGS) + 1


def test_it_is_read_from_where_one_has_stopped(delayq: DelayQ, redis: Redis) -> None:
    lines = [b"1 id%d t q w - - - %d SUCCESS 0 1 " % (n, n) for n in range(1200)]
    delayq.store.history.add("me", 2, 10_000, [*lines[:600], b"unreadable", *lines[600:]])
    redis.xadd("delayq:history", {"other": "not ours"})

    first = list(delayq.history(count=700))
    rest = list(delayq.history(first[-1].offset))

    assert [run.id for run in first + rest] == [f"id{n}" for n in range(1200)]
    assert list(delayq.history(count=0)) == []
    assert delayq.store.history.oldest_offset() == first[0].offset
    assert delayq.store.history.newest_offset() != rest[-1].offset
    assert list(delayq.history(rest[-1].offset)) == []


def test_it_ends_with_the_last_run_that_there_was_when_it_began(delayq: DelayQ) -> None:
    line = b"1 id t q w - - - 5 SUCCESS 0 1 "
    delayq.store.history.add("me", 2, 1000, [line])
    runs = delayq.history()
    next(runs)
    delayq.store.history.add("me", 3, 1000, [line])

    assert list(runs) == []


def test_it_is_under_the_prefix_and_fsck_knows_its_type(make_app: MakeApp, redis: Redis) -> None:
    app = make_app(broker_transport_options={"global_keyprefix": "shop:"})
    delayq = DelayQ.of(app)
    delayq.store.history.add("me", 2, 1000, [b"1 id t q w - - - 5 SUCCESS 0 1 "])

    assert redis.type("shop:delayq:history") == b"stream"
    assert delayq.store.repair_tracking.wrong_shared_types() == []
    redis.delete("shop:delayq:history")
    redis.set("shop:delayq:history", "no stream")
    assert delayq.store.repair_tracking.wrong_shared_types() == [
        "shop:delayq:history is a string, expected a stream"
    ]
