"""Each kind of dead letter tells its task, the reason, and its last attempt."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery, chord
from celery.exceptions import ChordError
from celery.result import AsyncResult

from celery_delayq import DelayQ
from celery_delayq.model.dead_letter import (
    MAX_TEXT_CHARACTERS,
    MAX_TRACEBACK_CHARACTERS,
    DeadLetter,
)
from celery_delayq.model.scheduled import Outcome
from celery_delayq.testing import POOLS, WorkerProcess, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.apps.retry_tasks import RetryScene
from tests.support import TIMEOUT
from tests.support.brokers import Broker
from tests.support.proxy import Proxy

#: Both ways to acknowledge, as settings of an app.
either_ack = pytest.mark.parametrize(
    "conf", [{"at_least_once": True}, {"at_least_once": False}], ids=["late", "early"]
)


def dead_letters(delayq: DelayQ) -> dict[str, DeadLetter]:
    """Return the dead letters by the ids of their tasks; each task has one."""
    found = [*delayq.dead_letters()]
    by_task = {str(dead_letter.task_id): dead_letter for dead_letter in found}
    assert len(by_task) == len(found)
    return by_task


def assert_whole(dead_letter: DeadLetter, worker: WorkerProcess, scene: RetryScene) -> None:
    """Check the fields that all dead letters of failed tasks have."""
    assert dead_letter.worker == worker.hostname
    assert dead_letter.started is not None
    assert dead_letter.started <= dead_letter.died + timedelta(milliseconds=5)
    assert dead_letter.died.timestamp() <= scene.now()
    assert (dead_letter.message or {})["headers"]["id"] == dead_letter.task_id
    assert dead_letter.queue in scene.queues
    json.dumps(dead_letter.as_dict())


# -- the last failure


@pytest.mark.conformance
@either_ack
@pytest.mark.parametrize("pool", POOLS)
def test_a_task_that_has_failed_for_good(
    pool: str, conf: dict[str, Any], app: Celery, delayq: DelayQ, scene: RetryScene
) -> None:
    worker = scene.start(pool, conf=conf)
    scene.send("steps", ["KeyError", "no such ship"], id="tried again")
    scene.send("plain", "ValueError", id="not tried again", countdown=0.2)
    scene.send("auto.plain", "OSError", id="by Celery")

    scene.wait_only_dead("tried again", "not tried again", "by Celery")

    found = dead_letters(delayq)
    for dead_letter in found.values():
        assert_whole(dead_letter, worker, scene)
        assert dead_letter.deliveries == 1
        assert dead_letter.message is not None
        own = dead_letter.message["properties"]["delayq"]
        assert not {"place", "queue", "deliveries"} & own.keys()
    one, other, third = (found[id] for id in ("tried again", "not tried again", "by Celery"))
    assert one.reason == "failed after 3 retries: KeyError: 'no such ship'"
    assert (one.task, one.exception, one.error) == ("steps", "KeyError", "'no such ship'")
    assert one.retries == one.headers["retries"] == 3
    assert one.args == [[["KeyError", "no such ship"]]]
    assert one.traceback is not None
    assert one.traceback.startswith("Traceback (most recent call last):")
    assert one.traceback.rstrip().endswith("KeyError: 'no such ship'")
    assert "raise getattr(builtins, word)" in one.traceback
    assert (other.reason, other.retries) == ("failed: ValueError: as told", 0)
    assert other.due is not None
    assert other.due < other.died
    assert (third.reason, third.retries) == ("failed after 2 retries: OSError: as told", 2)
    results = {id: AsyncResult(id, app=app) for id in found}
    assert {result.state for result in results.values()} == {"FAILURE"}


@pytest.mark.parametrize("pool", ["solo", "prefork"])
def test_what_a_dead_letter_tells_is_bounded(pool: str, delayq: DelayQ, scene: RetryScene) -> None:
    scene.start(pool)
    scene.send("plain", ["long text", 1_000_000], id="long")
    scene.send("plain", ["deep", 400], id="deep")
    scene.send("plain", ["unpicklable", None], id="unpicklable")
    scene.send("plain", ["ValueError", "two\nlines, a \0 and a \ud800"], id="odd")

    scene.wait_dead("long", "deep", "unpicklable", "odd")

    found = dead_letters(delayq)
    long = found["long"]
    assert long.error == "é" * MAX_TEXT_CHARACTERS
    assert long.traceback is not None
    assert 1000 < len(long.traceback) <= MAX_TRACEBACK_CHARACTERS + 2
    assert len(long.dead_lettered.data) < 100_000
    assert "ValueError: at the bottom" in (found["deep"].traceback or "")
    assert found["unpicklable"].exception == "Unpicklable"
    assert "as told" in (found["unpicklable"].error or "")
    assert "Unpicklable" in (found["unpicklable"].traceback or "")
    assert found["odd"].reason == "failed: ValueError: two lines, a \0 and a \\ud800"
    assert found["odd"].error == "two\nlines, a \0 and a \ud800"


# -- limits and lost processes


@either_ack
def test_a_task_that_took_too_long(conf: dict[str, Any], delayq: DelayQ, scene: RetryScene) -> None:
    worker = scene.start("prefork", conf=conf)
    scene.send("quick", ["nap", 60], time_limit=0.5)

    scene.wait_only_dead("a")

    [dead_letter] = delayq.dead_letters()
    assert_whole(dead_letter, worker, scene)
    told = (dead_letter.exception, dead_letter.retries, dead_letter.deliveries)
    assert told == ("TimeLimitExceeded", 0, 1)
    assert dead_letter.reason == "failed: TimeLimitExceeded: TimeLimitExceeded(0.5,)"
    assert scene.attempts("a") == [0]


@pytest.mark.parametrize(
    "conf", [{"at_least_once": False}, {"task_reject_on_worker_lost": False}], ids=["early", "late"]
)
def test_a_task_whose_process_was_lost_and_that_does_not_come_back(
    conf: dict[str, Any], delayq: DelayQ, scene: RetryScene
) -> None:
    worker = scene.start("prefork", conf=conf)
    scene.send("quick", "die")

    scene.wait_only_dead("a")

    [dead_letter] = delayq.dead_letters()
    assert_whole(dead_letter, worker, scene)
    assert (dead_letter.exception, dead_letter.deliveries) == ("WorkerLostError", 1)
    assert dead_letter.reason.startswith("failed: WorkerLostError: Worker exited prematurely")
    assert scene.attempts("a") == [0]


_ON_REDIS = (
    "killed its process 3 times",
    "its worker died 2 times, the last time with no other message",
)
#: The reason of a message that killed too many children or workers.
KILLED = {
    "redis": _ON_REDIS,
    "cluster": _ON_REDIS,
    "rabbitmq": ("killed its process too often", "its process died 2 times"),
}


def test_a_task_that_has_killed_too_many_processes(
    app: Celery, delayq: DelayQ, scene: RetryScene, broker: Broker
) -> None:
    app.conf.update(broker.counting)
    scene.send("quick", "die", countdown=0.1)
    scene.start("prefork", conf=broker.counting, delayq={"max_deliveries": 2})

    scene.wait_only_dead("a")

    [dead_letter] = delayq.dead_letters()
    assert dead_letter.reason == KILLED[broker.name][0]
    assert dead_letter.task == "quick"
    assert dead_letter.due is not None
    told = (dead_letter.id, dead_letter.exception, dead_letter.deliveries)
    assert told == ("a", "WorkerLostError", 3)
    assert "@" in str(dead_letter.worker)
    assert scene.runs("retries", "deliveries") == [(0, 1), (0, 2), (0, 3)]


def test_a_task_that_has_killed_too_many_workers(
    app: Celery, delayq: DelayQ, scene: RetryScene, broker: Broker
) -> None:
    settings = {"max_deliveries": 1, **broker.soon}
    app.conf.update(broker.counting)
    scene.send("quick", "die")
    for _ in range(2):
        assert scene.start(conf=broker.counting, delayq=settings).wait() == -9
    scene.start(conf=broker.counting, delayq=settings)

    scene.wait_dead("a")

    [dead_letter] = delayq.dead_letters()
    assert dead_letter.reason.startswith(KILLED[broker.name][1])
    assert (dead_letter.task_id, dead_letter.task, dead_letter.deliveries) == ("a", "quick", 2)
    # Redis has dead-lettered the message. It knows no id of messages that were sent to run at once.
    assert (dead_letter.id == "a") == (broker.name == "rabbitmq")
    assert delayq.dead_letter("a") == dead_letter
    assert delayq.purge("a") is Outcome.DONE
    assert delayq.dead_letter("a") is None


@pytest.mark.parametrize("pool", ["solo", "threads", "prefork"])
def test_what_cannot_go_back_is_kept(
    pool: str, app: Celery, delayq: DelayQ, scene: RetryScene
) -> None:
    app.tasks["early"].apply_async((["requeue"],), task_id="early")
    scene.start(pool)

    scene.wait_only_dead("early")

    assert scene.attempts("early") == [0]
    assert [dead_letter.reason for dead_letter in delayq.dead_letters()] == ["as told"]


@pytest.mark.parametrize("pool", POOLS)
def test_handlers_that_fail_add_no_dead_letter_and_hide_none(
    pool: str, app: Celery, delayq: DelayQ, scene: RetryScene
) -> None:
    app.tasks["clumsy"].apply_async((["ValueError"],), task_id="late")
    app.tasks["clumsy.early"].apply_async((["ValueError"],), task_id="early")
    worker = scene.start(pool)

    scene.wait_only_dead("late", "early")

    assert [scene.attempts(id) for id in ("late", "early")] == [[0, 1, 2], [0, 1, 2]]
    assert [dead_letter.exception for dead_letter in delayq.dead_letters()] == ["ValueError"] * 2
    assert "Clumsy.on_retry has failed" in worker.log


@pytest.mark.parametrize("pool", ["threads", "gevent", "eventlet", "solo", "prefork"])
def test_a_result_that_cannot_be_stored_costs_no_task_and_no_place_in_the_worker(
    pool: str, app: Celery, delayq_redis: RedisUnderTest, scene: RetryScene
) -> None:
    once = {"max_retries": 0, "interval_start": 0, "interval_step": 0, "interval_max": 0}
    with Proxy(delayq_redis.port) as proxy:
        scene.start(
            pool,
            conf={
                "result_backend_transport_options": {"retry_policy": once},
                "task_track_started": False,
                "worker_send_task_events": False,
            },
            env={"RETRY_NOTES": delayq_redis.url},
            result_backend=f"redis://127.0.0.1:{proxy.port}/0",
        )
        for id in ("a", "b"):
            app.tasks["plain"].apply_async((["wait"],), task_id=id)
        number = 1 if pool == "solo" else 2
        wait_until(lambda: len(scene.runs("id")) == number, TIMEOUT, "they run")
        proxy.refuse()
        for id in ("a", "b"):
            scene.client.rpush(f"gate:{id}", "go")
        scene.wait_dead("a", "b")
        proxy.accept()

        app.tasks["plain"].apply_async((["done"],), task_id="c")

        wait_until(lambda: "c" in scene.runs("id"), TIMEOUT, "the worker goes on")
        scene.wait_empty()
    assert sorted(scene.runs("id")) == ["a", "b", "c"]


# -- endings that are not failures of a task


def test_what_was_rejected_or_not_known_or_not_decodable(
    app: Celery, delayq: DelayQ, scene: RetryScene
) -> None:
    scene.send("quick", ["reject", "not to my taste"], id="rejected")
    app.send_task("who.knows", task_id="unknown", kwargs={"x": 1})
    app.send_task("quick", task_id="undecodable", serializer="pickle")
    worker = scene.start()

    scene.wait_only_dead("rejected", "unknown", "undecodable")

    found = dead_letters(delayq)
    rejected, unknown, undecodable = (found[id] for id in ("rejected", "unknown", "undecodable"))
    assert_whole(rejected, worker, scene)
    assert (rejected.reason, rejected.retries, rejected.deliveries) == ("not to my taste", 0, 1)
    assert (unknown.reason, unknown.task) == ("unknown task 'who.knows'", "who.knows")
    assert (unknown.args, unknown.kwargs) == ([], {"x": 1})
    assert undecodable.reason.startswith("undecodable message: Refusing to deserialize")


def test_what_goes_on_or_was_ended_manual_is_no_dead_letter(
    delayq: DelayQ, scene: RetryScene
) -> None:
    scene.start("prefork")
    scene.send("plain", "ignore", id="ignored")
    scene.send("steps", "OSError", "done", id="tried again")
    running = scene.send("plain", "wait", id="terminated")
    scene.wait_runs(4)

    running.revoke(terminate=True, signal="KILL")

    wait_until(lambda: running.state == "REVOKED", TIMEOUT, "it is terminated")
    scene.wait_empty()
    assert delayq.count_dead() == 0


# -- dead letters that are switched off


@either_ack
@pytest.mark.parametrize("how", ["setting", "task", "call"])
def test_without_dead_letters_a_failure_is_the_end(
    how: str, conf: dict[str, Any], app: Celery, delayq: DelayQ, scene: RetryScene
) -> None:
    options: dict[str, Any] = {"delayq": {"dead_letters": False}} if how == "setting" else {}
    scene.start(conf=conf, **options)
    name = {"setting": "quick", "task": "unkept", "call": "unkept"}[how]
    more = {"retry_intervals": [0, 0]} if how == "call" else {}
    header = [app.tasks[name].si(["OSError"]).set(task_id="member", **more)]
    result = chord(header, app.tasks["plain"].si(["done"])).apply_async()

    with pytest.raises(ChordError, match="OSError"):
        AsyncResult(result.id, app=app).get(timeout=TIMEOUT)

    scene.send(name, "reject", id="rejected")
    scene.wait_only_dead("rejected")
    assert [dead_letter.task_id for dead_letter in delayq.dead_letters()] == ["rejected"]
    assert len(scene.attempts("member")) == {"setting": 4, "task": 2, "call": 3}[how]
