"""To Celery, a retry by policy is a retry: events, signals, results, eager and direct calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from celery import Celery
from celery.contrib.testing.tasks import ping
from celery.exceptions import MaxRetriesExceededError, Retry
from celery.result import AsyncResult

from celery_delayq import DelayQ
from celery_delayq.errors import TaskReturnedFalse
from celery_delayq.testing import wait_until
from tests.apps.retry_tasks import RetryScene, tasks_of
from tests.integration.conftest import MakeApp
from tests.support import TIMEOUT

if TYPE_CHECKING:
    from tests.support.travelling import TravellingScene


@pytest.fixture
def eager(make_app: MakeApp) -> Celery:
    """An app that runs what it sends."""
    return tasks_of(make_app(task_always_eager=True))


# -- logs and events


@pytest.mark.parametrize("pool", ["solo", "prefork"])
def test_events_signals_and_handlers_tell_of_each_retry_and_of_the_end(
    pool: str, app: Celery, scene: RetryScene
) -> None:
    # With a second child the worker may hear that the next attempt has begun before it hears how
    # the last one ended.
    scene.start(pool, concurrency=1)
    task = app.tasks["telling"]
    with scene.watching() as told:
        task.apply_async((["ValueError"],), task_id="dies")
        scene.wait_dead("dies")
        task.apply_async((["ValueError", "done"],), task_id="lives")
        wait_until(lambda: ("task-succeeded", "lives") in told, TIMEOUT, lambda: f"{told}")

    by_id: dict[str, list[str]] = {"dies": [], "lives": []}
    for kind, id in told:
        if id and kind not in ("task-sent", "task-received"):
            by_id[id].append(kind)
    again = ["task-started", "task-retried"]
    assert by_id == {
        "dies": [*again, *again, "task-started", "task-failed"],
        "lives": [*again, "task-started", "task-succeeded"],
    }
    handlers = [each for each in scene.told() if each[0].startswith("on_")]
    assert handlers == [
        ("on_retry", "dies", 0),
        ("on_retry", "dies", 1),
        ("on_failure", "dies", 2),
        ("on_retry", "lives", 0),
        ("on_success", "lives", 1),
    ]
    heard = [each for each in scene.told() if each[0].startswith("task_")]
    assert heard == [
        ("task_retry", "dies", 0),
        ("task_retry", "dies", 1),
        ("task_failure", "dies", 2),
        ("task_retry", "lives", 0),
    ]


@pytest.mark.run_by("test")
def test_a_result_is_retry_until_the_end(
    app: Celery, delayq: DelayQ, scene: TravellingScene
) -> None:
    result = app.tasks["far"].apply_async((["KeyError"],), task_id="a")
    scene.run(0)
    assert result.state == "RETRY"
    assert isinstance(result.result, KeyError)
    assert "KeyError" in str(result.traceback)

    for _ in range(3):
        assert result.state == "RETRY"
        assert delayq.run_now("a")
        scene.run(0)

    with pytest.raises(KeyError, match="as told"):
        result.get(timeout=TIMEOUT)
    assert result.state == "FAILURE"


# -- called in another way


def test_an_eager_task_is_tried_again_without_waiting(eager: Celery, scene: RetryScene) -> None:
    result = eager.tasks["far"].apply_async((["OSError", "OSError", "done"],), task_id="late")
    failed = eager.tasks["far"].apply((["OSError"],), task_id="never")
    manual = eager.tasks["far"].apply((["retry", "done"],), task_id="manually")

    assert (result.state, result.get()) == ("SUCCESS", "done")
    assert (manual.state, manual.get()) == ("SUCCESS", "done")
    assert failed.state == "FAILURE"
    with pytest.raises(OSError, match="as told"):
        failed.get()
    assert scene.attempts("late") == [0, 1, 2]
    assert scene.attempts("never") == [0, 1, 2, 3]
    assert scene.attempts("manually") == [0, 1]
    assert scene.unfinished() == {}


def test_of_an_eager_task_too_some_failures_are_the_last(eager: Celery, scene: RetryScene) -> None:
    refused = eager.tasks["choosy"].apply((["FileNotFoundError"],), task_id="refused")
    false = eager.tasks["strict"].apply(([["return", False]],), task_id="false")
    manual = eager.tasks["far"].apply((["retry"],), task_id="manually")

    assert isinstance(refused.result, FileNotFoundError)
    assert scene.attempts("refused") == [0]
    assert isinstance(false.result, TaskReturnedFalse)
    assert scene.attempts("false") == [0, 1, 2]
    assert isinstance(manual.result, MaxRetriesExceededError)
    assert scene.attempts("manually") == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["far", "auto.plain"])
def test_an_eager_task_that_is_to_propagate_says_so_when_it_is_tried_again(
    name: str, eager: Celery
) -> None:
    """By policy as with Celery's own ``autoretry_for``."""
    eager.conf.task_eager_propagates = True

    with pytest.raises(Retry):
        eager.tasks[name].apply((["OSError", "done"],))
    with pytest.raises(OSError, match="as told"):
        eager.tasks["never"].apply((["OSError"],))


def test_a_task_that_is_called_like_a_function_is_one(app: Celery, scene: RetryScene) -> None:
    steps, strict, auto = (app.tasks[name] for name in ("far", "strict", "auto"))

    with pytest.raises(ValueError, match="as told"):
        steps(["ValueError"])
    with pytest.raises(OSError, match="as told"):
        auto(["OSError"])
    with pytest.raises(OSError, match="as told"):
        steps(["caught"])
    with pytest.raises(Retry, match="Task can be retried"):
        steps(["retry"])
    assert strict([["return", False]]) is False
    assert steps(["done"]) == "done"

    assert len(scene.runs("id")) == 6
    assert scene.unfinished() == {}
    assert ping.app is not None  # some other app's task, which nobody has touched
    assert "_delayq_attempts" not in vars(ping)


@pytest.mark.run_by("test")
def test_a_task_that_a_task_calls_like_a_function_fails_that(
    app: Celery, scene: TravellingScene
) -> None:
    result = app.tasks["quick"].apply_async(([["call", "far"]],), task_id="caller")
    scene.run()

    with pytest.raises(ValueError, match="as told"):
        result.get(timeout=TIMEOUT)
    assert scene.attempts("caller") == [0, 1, 2, 3]
    assert scene.runs("task").count("far") == 4
    scene.wait_empty()


def test_an_app_may_get_its_extension_after_its_tasks(make_app: MakeApp) -> None:
    app = tasks_of(make_app(extension=False, task_always_eager=True))
    assert app.tasks["plain"].apply((["OSError", "done"],)).state == "FAILURE"

    DelayQ(app, retry={"pl*": [3600]})

    assert app.tasks["plain"].apply((["OSError", "done"],)).state == "SUCCESS"
    assert app.tasks["far"].apply((["OSError", "done"],)).state == "SUCCESS"
    assert app.tasks["exempt"].apply((["OSError", "done"],)).state == "FAILURE"


# -- beside Celery's own way


@pytest.mark.run_by("test")
def test_beside_autoretry_for_each_does_what_it_says(app: Celery, scene: RetryScene) -> None:
    """Celery's own options go before the policy for what ``autoretry_for`` names."""
    cases: dict[str, tuple[str, str, list[float]]] = {
        # id: task, what it raises, the waits
        "named": ("auto", "OSError", [0.1, 0.3]),
        "not named": ("auto", "KeyError", [0.1, 0.3]),
        "with kwargs": ("auto.kwargs", "OSError", [0.1, 0.1]),
        "not named, with kwargs": ("auto.kwargs", "KeyError", [0, 0, 0, 0]),
        "with backoff": ("auto.backoff", "OSError", [4]),
        "not named, with backoff": ("auto.backoff", "KeyError", [0.1]),
        "refused to Celery": ("auto.refusing", "FileNotFoundError", []),
        "refused to us": ("auto.refusing", "ConnectionError", []),
        "not refused": ("auto.refusing", "OSError", [0, 0]),
        "no policy": ("auto.plain", "OSError", [0.1, 0.1]),
        "refused without a policy": ("auto.plain", "FileNotFoundError", []),
        "refused to Celery without a policy": ("auto.plain", "ConnectionError", []),
        "not named without a policy": ("auto.plain", "KeyError", []),
    }
    for id, (task, error, _) in cases.items():
        app.tasks[task].apply_async(([error],), task_id=id)

    scene.wait_dead(*cases)

    scene.assert_waits({id: waits for id, (_, _, waits) in cases.items()})
    for id, (_, error, _) in cases.items():
        assert type(AsyncResult(id, app=app).result).__name__ == error
    scene.wait_empty()


def test_the_limit_of_one_message_is_not_that_of_another(app: Celery, scene: RetryScene) -> None:
    """Celery notes it on the task, which all threads share."""
    scene.start("threads", concurrency=8, conf={"worker_prefetch_multiplier": 4})
    limits = {f"{n}": n % 5 for n in range(60)}
    for id, limit in limits.items():
        options = {"max_retries": limit} if limit else {}
        app.tasks["auto.plain"].apply_async((["OSError"],), task_id=id, **options)

    scene.wait_dead(*limits)

    assert {id: len(scene.waits(id)) for id in limits} == {
        id: limit or 2 for id, limit in limits.items()
    }


# -- while it waits


@pytest.mark.run_by("test")
def test_a_retry_that_waits_is_an_entry_like_others(
    app: Celery, delayq: DelayQ, scene: TravellingScene
) -> None:
    for id in ("moved", "cancelled", "run"):
        scene.send("plain", "OSError", "done", id=id, retry_intervals=[3600])
    scene.run(0)
    assert delayq.count() == 3

    [found] = [each for each in delayq.list() if each.id == "cancelled"]
    assert (found.task, found.state, found.headers["retries"]) == ("plain", "scheduled", 1)
    assert found.due.timestamp() - scene.now() == 3600
    results = {id: AsyncResult(id, app=app) for id in ("moved", "cancelled", "run")}
    assert {each.state for each in results.values()} == {"RETRY"}

    assert delayq.cancel("cancelled")
    assert delayq.reschedule("moved", countdown=0.1)
    assert delayq.run_now("run")
    scene.run(1)

    assert results["moved"].get(timeout=TIMEOUT) == results["run"].get(timeout=TIMEOUT) == "done"
    assert results["cancelled"].state == "REVOKED"
    assert delayq.get("cancelled") is None
    assert scene.attempts("cancelled") == [0]
    assert [*delayq.dead_letters()] == []
