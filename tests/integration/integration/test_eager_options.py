"""What our options do when a task runs eagerly: the table in ``docs/testing.md``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery
from celery.result import EagerResult
from redis import Redis

from celery_delayq import DelayQ, Limit, RetryPolicy
from celery_delayq.errors import InvalidRetry, TaskReturnedFalse

Run = Callable[..., EagerResult]


@pytest.fixture(params=["apply", "apply_async"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a task eagerly, in both ways."""
    return lambda task, **options: getattr(task, request.param)(**options)


@pytest.fixture(params=["finalized", "not finalized"])
def eager(request: pytest.FixtureRequest, delayq_broker_url: str) -> Celery:
    """An app that is finalized before a test defines a task, or not, as after an import only."""
    app = Celery("eager", broker=delayq_broker_url, set_as_current=False)
    app.conf.task_always_eager = True
    limits = {"limited": Limit("one", rate="1/d")}
    DelayQ(app, retry={"by.name": RetryPolicy(60, max_retries=1)}, limits=limits)
    if request.param == "finalized":
        app.finalize()
    return app


def failing(app: Celery, attempts: list[int], name: str, **options: Any) -> Any:
    """Return a task that notes its attempts and fails."""

    @app.task(name=name, bind=True, shared=False, **options)
    def fail(self: Any) -> None:
        attempts.append(self.request.retries)
        raise OSError("as told")

    return fail


#: Names and options of tasks that fail, and the attempts of each.
POLICIES: list[tuple[str, dict[str, Any], list[int]]] = [
    ("plain", {}, [0]),
    ("own", {"retry_intervals": (60, 60)}, [0, 1, 2]),
    ("own", {"retry_intervals": 60, "max_retries": 1}, [0, 1]),
    ("own", {"retry_intervals": 60, "dont_retry_for": (OSError,)}, [0]),
    ("by.name", {}, [0, 1]),
    ("by.name", {"retry_intervals": False}, [0]),
    ("auto", {"autoretry_for": (OSError,), "retry_kwargs": {"max_retries": 1}}, [0, 1]),
]


@pytest.mark.parametrize(("name", "options", "expected"), POLICIES)
def test_a_failed_task_is_retried_at_once(
    eager: Celery, run: Run, redis: Redis, name: str, options: dict[str, Any], expected: list[int]
) -> None:
    attempts: list[int] = []
    task = failing(eager, attempts, name, **options)
    for _ in range(2):
        attempts.clear()
        result = run(task)
        assert (attempts, result.state, type(result.result)) == (expected, "FAILURE", OSError)
    assert redis.keys() == []


def test_false_is_a_failure(eager: Celery, run: Run) -> None:
    @eager.task(shared=False, false_is_failure=True)
    def refuse() -> bool:
        return False

    result = run(refuse)
    assert (result.state, type(result.result)) == ("FAILURE", TaskReturnedFalse)


#: Options of a task, and of a call, that concern what is stored.
WITHOUT_EFFECT: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("unique", {"unique_key": "one", "on_conflict": "error"}, {}),
    ("unique", {}, {"unique_key": "one", "on_conflict": "error"}),
    ("limited", {}, {}),
    ("limited", {"limit": Limit("own", rate="1/d")}, {}),
    ("late", {}, {"countdown": 3600, "skip_after": 60}),
    ("call", {}, {"retry_intervals": [1], "max_retries": 5}),
]


@pytest.mark.parametrize(("name", "options", "call"), WITHOUT_EFFECT)
def test_what_concerns_stored_tasks_has_no_effect(
    eager: Celery,
    run: Run,
    redis: Redis,
    name: str,
    options: dict[str, Any],
    call: dict[str, Any],
) -> None:
    attempts: list[int] = []
    task = failing(eager, attempts, name, dead_letter=True, **options)
    for _ in range(2):
        assert run(task, **call).state == "FAILURE"

    assert attempts == [0, 0]
    assert redis.keys() == []


def test_an_invalid_policy_is_refused_at_each_run(eager: Celery) -> None:
    task, was_finalized = failing(eager, [], "wrong", retry_intervals="often"), eager.finalized

    for _ in range(2):
        with pytest.raises(InvalidRetry, match="task wrong: retry_intervals='often'"):
            task.apply()
    assert eager.finalized == was_finalized
