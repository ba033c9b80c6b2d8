"""What is bound where a task is sent is bound where it runs, and in all that comes of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
from celery import Celery
from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.errors import InvalidContext
from celery_delayq.model.context import context
from celery_delayq.schedule.items import Item
from celery_delayq.schedule.message_factory import MessageFactory
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.conftest import MakeApp, batch, ready, stored
from tests.support import TIMEOUT
from tests.support.context import ADA, ContextScene, with_context_tasks
from tests.support.scene import StartWorker

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"


@pytest.fixture
def scene(app: Celery, delayq_redis: RedisUnderTest, delayq_worker: StartWorker) -> ContextScene:
    return ContextScene(delayq_redis, app, delayq_worker)


@pytest.fixture
def app(make_app: MakeApp) -> Celery:
    return with_context_tasks(make_app())


@pytest.fixture
def look(app: Celery) -> Any:
    return app.tasks["look"]


# -- all that a task may come to ------------------------------------------------------------------


@pytest.mark.parametrize("late", [False, True], ids=["early ack", "late ack"])
def test_a_retry_has_it_too(look: Any, scene: ContextScene, late: bool) -> None:
    scene.start("prefork", conf={"task_acks_late": late, "task_reject_on_worker_lost": late})
    unique = {"unique_key": "{0}", "unique_scope": "done"}
    with context(**ADA):
        calls = [
            look.delay("retry", "retry"),
            look.apply_async(("autoretry", "autoretry"), countdown=0.2),
            look.apply_async(("unique", "retry"), countdown=0.2, **unique),
            look.apply_async(("own", "retry"), context={"user": "bob"}),
            look.delay("with", "retry with", {"attempt": "second"}),
        ]
    names = ["retry", "autoretry", "unique", "own", "with"]
    assert [call.get(timeout=TIMEOUT) for call in calls] == names
    runs = {(run["name"], run["retries"]): run["context"] for run in scene.read()}
    assert runs == {
        **{(name, retries): ADA for name in names for retries in (0, 1)},
        ("own", 0): {**ADA, "user": "bob"},
        ("own", 1): {**ADA, "user": "bob"},
        ("with", 1): {**ADA, "attempt": "second"},
    }


def test_a_chord_under_late_acks_has_it_inside_a_task_too(look: Any, scene: ContextScene) -> None:
    scene.start("prefork", conf={"task_acks_late": True})
    with context(**ADA):
        look.delay("parent", "canvas")
    assert scene.contexts(5) == dict.fromkeys(("parent", "a", "b", "c", "then"), ADA)


@pytest.mark.parametrize("pool", ["solo", "threads", "prefork"])
def test_nothing_leaks_from_one_task_to_the_next(look: Any, scene: ContextScene, pool: str) -> None:
    for n, do in enumerate(("leave", "fail", "ignore", "retry", "")):
        with context(n=n):
            look.delay(f"bound {n}", do)
        look.delay(f"free {n}")
    worker = scene.start(pool)

    found = scene.contexts(11)
    assert found == {
        **{f"bound {n}": {"n": n} for n in range(5)},
        **{f"free {n}": {} for n in range(5)},
    }
    for n in range(5):
        worker.wait_log(rf"INFO <n={n}> seen by bound {n}")
        worker.wait_log(rf"INFO <> seen by free {n}")


@pytest.mark.parametrize("pool", ["threads", "gevent", "eventlet"])
def test_tasks_that_run_at_the_same_time_have_each_their_own(
    app: Celery, scene: ContextScene, pool: str
) -> None:
    scene.start(pool, concurrency=8, conf={"worker_prefetch_multiplier": 1})
    for n in range(8):
        with context(n=n):
            app.tasks["meeting"].delay(f"{n}", 8)

    assert scene.contexts(8) == {f"{n}": [{"n": n}, {"n": n, "inner": f"{n}"}] for n in range(8)}


def test_what_is_delivered_again_has_it_again(
    look: Any, scene: ContextScene, delayq: DelayQ
) -> None:
    with context(**ADA):
        result = look.apply_async(("killed", "die once"), countdown=3600)
    assert delayq.run_now(result.id)
    scene.start("prefork", conf={"task_acks_late": True, "task_reject_on_worker_lost": True})

    assert result.get(timeout=TIMEOUT) == "killed"
    assert [run["context"] for run in scene.read()] == [ADA, ADA]


# -- many at once ---------------------------------------------------------------------------------


def carried(messages: list[dict[str, Any]]) -> list[Any]:
    """Return what messages carry."""
    texts = [message["properties"]["delayq"].get("context") for message in messages]
    return [None if text is None else json.loads(text) for text in texts]


@pytest.fixture
def made() -> Iterator[Any]:
    """Count the messages that Celery itself has made."""
    make = MessageFactory._make_once
    with patch.object(MessageFactory, "_make_once", autospec=True, side_effect=make) as made:
        yield made


def test_each_of_many_has_what_was_bound_when_it_was_taken(
    delayq: DelayQ, redis: Redis, made: Any
) -> None:
    def items() -> Iterator[Any]:
        for n in range(50):
            with context(user=f'"{n}% %(id)s'):
                yield Item((n, n), countdown=60 + n, options={"context": {"n": n}})
        yield Item((50, 50), countdown=600)

    with context(job="nightly"):
        report = delayq.schedule_many(items(), task="tasks.add")

    assert report.counts == {"scheduled": 51}
    assert carried(stored(redis)) == [
        *({"job": "nightly", "user": f'"{n}% %(id)s', "n": n} for n in range(50)),
        {"job": "nightly"},
    ]
    # One was made by Celery, the others are like it.
    assert made.call_count == 1


def test_some_of_many_have_none(delayq: DelayQ, redis: Redis, made: Any) -> None:
    def items(due: int) -> list[Item]:
        options: list[dict[str, Any]] = [{}, {"context": False}, {"context": {"user": None}}]
        return [Item((n, n), countdown=due + n, options=options[n % 3]) for n in range(9)]

    delayq.schedule_many(items(100), task="tasks.add")
    with context(user="ada"):
        delayq.schedule_many(items(200), task="tasks.add", context={"order": 17})

    found = carried(stored(redis))
    # An item's own option goes before that of all.
    assert found == [None] * 9 + [{"user": "ada", "order": 17}, None, None] * 3
    # Those with and those without are messages of two kinds.
    assert made.call_count == 1 + 2


def test_one_of_many_that_is_wrong_is_refused(delayq: DelayQ, redis: Redis) -> None:
    items = [Item((n, n), countdown=60, options={"context": {"n": n or b"0"}}) for n in range(2)]

    report = delayq.schedule_many(items, task="tasks.add")

    assert report.counts == {"refused": 1, "scheduled": 1}
    assert isinstance(report.refusals[0].error, InvalidContext)
    assert carried(stored(redis)) == [{"n": 1}]


def test_each_of_many_has_the_trace_in_which_it_was_taken(
    delayq: DelayQ, redis: Redis, made: Any
) -> None:
    def items() -> Iterator[Any]:
        for n in range(12):
            with context(traceparent=PARENT if n % 2 else f"00-{n + 1:032x}-{1:016x}-01", n=n):
                yield Item((n, n), countdown=60 + n)

    delayq.schedule_many(items(), task="tasks.add")

    parents = [message["headers"]["traceparent"] for message in stored(redis)]
    assert parents == [PARENT if n % 2 else f"00-{n + 1:032x}-{1:016x}-01" for n in range(12)]
    assert made.call_count == 7


def test_a_batch_of_producers_carries_it(app: Celery, redis: Redis) -> None:
    add = app.tasks["tasks.add"]
    with batch(app, max_size=10) as producer:
        for n in range(25):
            with context(n=n):
                add.apply_async((n, n), producer=producer)

    assert carried(ready(redis)) == [{"n": n} for n in range(25)]
