"""Failed tasks are tried again as their policy says: how often, when, and after which failures."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest
from celery import Celery
from celery.result import AsyncResult

from celery_delayq import DelayQ
from celery_delayq.model.retry_policy import Exponential
from celery_delayq.testing import POOLS, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.apps.retry_tasks import TIMEOUT, Act, RetryScene, StartWorker, start, tasks_of
from tests.integration.conftest import MakeApp

# Celery's result backend, with the newest redis-py.
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")


@pytest.fixture
def app(make_app: MakeApp) -> Celery:
    return tasks_of(make_app())


@pytest.fixture
def scene(delayq_redis: RedisUnderTest) -> RetryScene:
    return RetryScene(delayq_redis)


def send(app: Celery, task: str, *acts: Act, id: str = "", **options: Any) -> AsyncResult:
    """Send a task that ends as told; its id is its name unless it has another."""
    return app.tasks[task].apply_async((acts,), task_id=id or task, **options)


def ends(results: list[AsyncResult]) -> dict[str, str]:
    """Wait for the end of tasks, and return what became of them: a result or an exception."""
    for result in results:
        result.get(timeout=TIMEOUT, propagate=False)
    return {each.id: repr(each.result) if each.failed() else str(each.result) for each in results}


def assert_waits(scene: RetryScene, waits: dict[str, list[float]]) -> None:
    """Check that no attempt was early, and that none was waited for much longer.

    Machines are busy, too: see the benchmark of retries for 50 ms.
    """
    late = []
    for id, expected in waits.items():
        found = scene.waits(id)
        assert len(found) == len(expected), (id, found)
        late += [after - wait for after, wait in zip(found, expected, strict=True)]
    assert min(late) >= 0, late
    assert max(late) < 3.5, late


# -- how often, and when


@pytest.mark.conformance
@pytest.mark.parametrize("pool", POOLS)
def test_attempts_and_waits_are_those_of_the_policy(
    pool: str, app: Celery, delayq: DelayQ, scene: RetryScene, delayq_worker: StartWorker
) -> None:
    """With late acknowledgement and, ``early``, with early one."""
    start(delayq_worker, pool)
    expected = {
        "steps": [0.1, 0.3, 0.2],
        "early": [0.1, 0.3, 0.2],
        "longer": [0.05, 0.15, 0.15, 0.15],
        "growing": [0.05, 0.1, 0.15, 0.15],
        "computed": [0.05, 0.1],
        "fixed": [0.1, 0.1, 0.1],
        "never": [],
        "plain": [],
    }
    results = [send(app, name, "ValueError") for name in expected]
    results += [
        send(app, "steps", "OSError", "OSError", "done", id="late success"),
        send(app, "early", "KeyError", "done", id="early success"),
    ]

    found = ends(results)

    failed = dict.fromkeys(expected, "ValueError('as told')")
    assert found == failed | {"late success": "done", "early success": "done"}
    scene.wait_dead(delayq, *expected)
    dead_letters = {dead_letter.task_id: dead_letter for dead_letter in delayq.dead_letters()}
    assert set(dead_letters) == set(expected)
    assert {id: dead_letter.retries for id, dead_letter in dead_letters.items()} == {
        id: len(waits) for id, waits in expected.items()
    }
    expected |= {"late success": [0.1, 0.3], "early success": [0.1]}
    assert_waits(scene, expected)
    assert {id: scene.attempts(id) for id in expected} == {
        id: list(range(len(waits) + 1)) for id, waits in expected.items()
    }
    scene.wait_empty()


def test_waits_of_an_idle_worker_are_not_rounded_up_to_a_poll(
    app: Celery, scene: RetryScene, delayq_worker: StartWorker
) -> None:
    start(delayq_worker)
    policy = [0.1, 0.25, 0.05, 0.3, 0.15, 0.2, 0.1, 0.35, 0.05, 0.2]

    ends([send(app, "plain", "ValueError", retry_intervals=policy)])

    late = [after - wait for after, wait in zip(scene.waits("plain"), policy, strict=True)]
    assert min(late) >= 0
    # 50 ms are shown by the benchmark of retries, on a machine that does nothing else.
    assert median(late) < 0.5, late


def test_jitter_shortens_waits_within_its_part(
    app: Celery, scene: RetryScene, delayq_worker: StartWorker
) -> None:
    start(delayq_worker, "threads", concurrency=4)
    results = [send(app, "jittery", "ValueError", id=str(n)) for n in range(5)]
    results.append(send(app, "jittery", "ValueError", id="none", retry_jitter=False))

    ends(results)

    waits = [wait for n in range(5) for wait in scene.waits(str(n))]
    assert len(waits) == 20
    assert min(waits) >= 0.2
    assert min(waits) < 0.39, "none was shortened"
    assert len({round(wait, 3) for wait in waits}) > 5
    assert min(scene.waits("none")) >= 0.4


# -- after which failures


def test_what_is_covered_is_tried_again_and_nothing_else(
    app: Celery, delayq: DelayQ, scene: RetryScene, delayq_worker: StartWorker
) -> None:
    start(delayq_worker)
    cases: dict[str, tuple[str, list[Act], int]] = {
        # id: task, what it does, retries
        "covered": ("choosy", ["OSError"], 2),
        "a kind of that": ("choosy", ["ConnectionError"], 2),
        "refused": ("choosy", ["FileNotFoundError"], 0),
        "not covered": ("choosy", ["ValueError"], 0),
        "refused later": ("choosy", ["OSError", "FileNotFoundError"], 1),
        "false": ("strict", [["return", False]], 2),
        "false at first": ("strict", [["return", False], "done"], 1),
        "no false": ("strict", [["return", None]], 0),
        "zero": ("strict", [["return", 0]], 0),
        "false and a result": ("steps", [["return", False]], 0),
        "false without retries": ("strict.plain", [["return", False]], 0),
        "rejected": ("steps", ["reject"], 0),
        "ignored": ("steps", ["ignore"], 0),
    }
    for id, (task, acts, _) in cases.items():
        send(app, task, *acts, id=id)
    count = sum(retries + 1 for _, _, retries in cases.values())

    scene.wait_runs(count)
    scene.wait_empty()

    assert {id: len(scene.attempts(id)) - 1 for id in cases} == {
        id: retries for id, (_, _, retries) in cases.items()
    }
    found = {dead_letter.task_id: dead_letter.reason for dead_letter in delayq.dead_letters()}
    assert found == {
        "covered": "failed after 2 retries: OSError: as told",
        "a kind of that": "failed after 2 retries: ConnectionError: as told",
        "refused": "failed: FileNotFoundError: as told",
        "not covered": "failed: ValueError: as told",
        "refused later": "failed after 1 retry: FileNotFoundError: as told",
        "false": "failed after 2 retries: TaskReturnedFalse: strict returned False",
        "false without retries": "failed: TaskReturnedFalse: strict.plain returned False",
        "rejected": "as told",
    }
    assert AsyncResult("false", app=app).state == "FAILURE"
    assert AsyncResult("zero", app=app).result == 0
    assert AsyncResult("false and a result", app=app).result is False


def test_a_soft_time_limit_is_a_failure_like_others(
    app: Celery, scene: RetryScene, delayq_worker: StartWorker
) -> None:
    start(delayq_worker, "prefork")

    assert send(app, "limited", ["nap", 1.8], "done").get(timeout=TIMEOUT) == "done"
    assert scene.attempts("limited") == [0, 1]


# -- manually


def test_a_retry_manual_has_the_waits_and_the_limit_of_the_policy_unless_it_says_more(
    app: Celery, delayq: DelayQ, scene: RetryScene, delayq_worker: StartWorker
) -> None:
    start(delayq_worker, "threads", concurrency=8)
    results = [
        send(app, "steps", "retry", id="plain"),
        send(app, "steps", "caught", id="with its reason"),
        send(app, "steps", ["retry", {"countdown": 0.5}], "done", id="own wait"),
        send(app, "steps", ["retry", {"countdown": 0}], "done", id="no wait"),
        send(app, "steps", ["retry", {"max_retries": 1}], id="own limit"),
        send(app, "steps", ["retry", {"max_retries": 5}], id="higher limit"),
        send(app, "steps", ["caught", {"max_retries": 1}], id="own limit and reason"),
        send(app, "auto", ["caught", {"max_retries": 1}], id="beside autoretry"),
        send(app, "steps", ["retry", {"countdown": 0.3, "queue": "celery"}], "done", id="queue"),
        send(app, "plain", ["retry", {"countdown": 0.2}], "done", id="no policy"),
    ]

    found = ends(results)

    assert_waits(
        scene,
        {
            "plain": [0.1, 0.3, 0.2],
            "with its reason": [0.1, 0.3, 0.2],
            "own wait": [0.5],
            "no wait": [0],
            "own limit": [0.1],
            "higher limit": [0.1, 0.3, 0.2, 0.2, 0.2],
            "own limit and reason": [0.1],
            "beside autoretry": [0.1],
            "queue": [0.3],
            "no policy": [0.2],
        },
    )
    for id in ("own wait", "no wait", "queue", "no policy"):
        assert found[id] == "done"
    for id in ("with its reason", "own limit and reason", "beside autoretry"):
        assert found[id] == "OSError('as told')"
    for id in ("plain", "own limit", "higher limit"):
        assert found[id].startswith("MaxRetriesExceededError"), found[id]
    scene.wait_dead(delayq, "plain", "own limit", "higher limit")
    dead_letters = {
        dead_letter.task_id: dead_letter.exception for dead_letter in delayq.dead_letters()
    }
    assert dead_letters["plain"] == "MaxRetriesExceededError"


# -- of one call


def test_a_call_has_a_policy_of_its_own(
    app: Celery, delayq: DelayQ, scene: RetryScene, delayq_worker: StartWorker
) -> None:
    start(delayq_worker, "threads", concurrency=8)
    cases: dict[str, tuple[str, dict[str, Any], list[float]]] = {
        "without one of the task": ("plain", {"retry_intervals": [0.1, 0.2]}, [0.1, 0.2]),
        "instead": ("steps", {"retry_intervals": [0.3]}, [0.3]),
        "one number": ("steps", {"retry_intervals": 0.1, "max_retries": 2}, [0.1, 0.1]),
        "growing": (
            "plain",
            {"retry_intervals": Exponential(0.1, 3, 0.2), "max_retries": 3},
            [0.1, 0.2, 0.2],
        ),
        "a limit alone": ("steps", {"max_retries": 1}, [0.1]),
        "a higher limit": ("steps", {"max_retries": 4}, [0.1, 0.3, 0.2, 0.2]),
        "none": ("steps", {"max_retries": 0}, []),
        "not tried again": ("steps", {"retry_intervals": False}, []),
        "a limit without a policy": ("plain", {"max_retries": 2}, []),
        "early": ("early", {"retry_intervals": [0.2, 0.1]}, [0.2, 0.1]),
        "delayed": ("plain", {"retry_intervals": [0.2], "countdown": 0.3}, [0.2]),
        "of an exempt task": ("exempt", {"retry_intervals": [0.1]}, [0.1]),
        "beside retry_kwargs": ("auto.kwargs", {"max_retries": 1}, [0.1]),
        "instead of retry_kwargs": (
            "auto.kwargs",
            {"retry_intervals": [0.3, 0.2, 0.1]},
            [0.3, 0.2, 0.1],
        ),
        "instead of a backoff": ("auto.backoff", {"retry_intervals": [0.2]}, [0.2]),
        "of an autoretry": ("auto.plain", {"max_retries": 3}, [0.1, 0.1, 0.1]),
    }
    results = [
        send(app, task, "OSError", id=id, **options) for id, (task, options, _) in cases.items()
    ]

    ends(results)

    assert_waits(scene, {id: waits for id, (_, _, waits) in cases.items()})
    scene.wait_dead(delayq, *cases)
    scene.wait_empty()


def test_what_is_refused_stays_refused_whatever_the_call_says(
    app: Celery, scene: RetryScene, delayq_worker: StartWorker
) -> None:
    start(delayq_worker)
    again: dict[str, Any] = {"retry_intervals": [0, 0]}

    ends(
        [
            send(app, "choosy", "FileNotFoundError", id="refused", **again),
            send(app, "choosy", "ValueError", id="not covered", **again),
            send(app, "auto.plain", "FileNotFoundError", id="by us", **again),
            send(app, "auto.plain", "ConnectionError", id="by Celery", **again),
            send(app, "auto.plain", "ValueError", id="all others", **again),
        ]
    )

    attempts = {id: len(scene.attempts(id)) for id in scene.runs("id")}
    expected = {"refused": 1, "not covered": 1, "by us": 1, "by Celery": 1, "all others": 3}
    assert attempts == expected


@pytest.mark.parametrize("task", ["plain", "steps"])
def test_a_task_that_is_delivered_again_has_the_policy_of_its_call(
    task: str, app: Celery, delayq: DelayQ, scene: RetryScene, delayq_worker: StartWorker
) -> None:
    doomed = start(delayq_worker, delayq={"lease": 1})
    send(app, task, "die once", id="first", retry_intervals=[0.3, 0.1])
    assert doomed.wait() == -9
    start(delayq_worker, delayq={"lease": 1})
    send(app, task, "ValueError", id="second", retry_intervals=[0.3, 0.1])
    send(app, task, ["nap", 0], id="third", retry_intervals=[0.3, 0.1])

    scene.wait_dead(delayq, "second")
    scene.wait_empty()

    runs = scene.runs("id", "retries", "deliveries")
    assert [run[1:] for run in runs if run[0] == "first"] == [(0, 1), (0, 2)]
    assert [run[1:] for run in runs if run[0] == "second"] == [(0, 1), (1, 1), (2, 1)]


def test_a_retry_that_is_delivered_again_has_the_policy_of_its_call(
    app: Celery, delayq: DelayQ, scene: RetryScene, delayq_worker: StartWorker
) -> None:
    doomed = start(delayq_worker, delayq={"lease": 1})
    acts: list[Act] = ["ValueError", "die once", "ValueError"]
    send(app, "plain", *acts, id="a", retry_intervals=[0.1, 0.2, 0.3], retry_jitter=0.1)
    assert doomed.wait() == -9
    start(delayq_worker, delayq={"lease": 1})

    assert AsyncResult("a", app=app).get(timeout=TIMEOUT) == "done"

    assert scene.runs("retries", "deliveries") == [(0, 1), (1, 1), (1, 2)]


# -- by default


def test_an_app_gives_its_tasks_a_policy_by_their_names(
    app: Celery, delayq: DelayQ, scene: RetryScene, delayq_worker: StartWorker
) -> None:
    """The first pattern that matches counts; what tasks say goes before it."""
    defaults = {"steps": [0.5], "pl?in": [0.1, 0.2], "shoo.*": [1], "*": [0.3]}
    worker = start(delayq_worker, "threads", concurrency=8, conf={"retry": defaults})

    ends(
        [
            send(app, name, "OSError")
            for name in ("plain", "steps", "exempt", "never", "auto", "strict.plain")
        ]
    )

    assert_waits(
        scene,
        {
            "plain": [0.1, 0.2],
            "steps": [0.1, 0.3, 0.2],
            "exempt": [],
            "never": [],
            "auto": [0.1, 0.3],
            "strict.plain": [0.3],
        },
    )
    warnings = [line for line in worker.log.splitlines() if "matches no task" in line]
    assert len(warnings) == 1, warnings
    assert "DelayQ(retry={'shoo.*': …}) matches no task of this app" in warnings[0]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"retry_intervals": [1, -1]}, "retry_intervals=[1, -1]: step -1: expected a timedelta"),
        ({"retry_intervals": []}, "retry_intervals=[] is empty: expected seconds"),
        ({"retry_intervals": [1], "max_retries": -1}, "max_retries=-1: expected 0 or more"),
        ({"retry_for": "OSError"}, "retry_for='OSError': expected exception classes"),
        ({"retry_intervals": [1], "retry_jitter": 2}, "retry_jitter=2: expected a number"),
    ],
)
def test_a_worker_does_not_start_with_options_that_are_none(
    options: dict[str, Any], problem: str, delayq_worker: StartWorker
) -> None:
    worker = start(delayq_worker, conf={"invalid": options}, wait_ready=False)

    assert worker.wait() != 0

    assert f"The worker cannot start: task invalid: {problem}" in worker.log
    assert " ready." not in worker.log


def test_a_call_with_options_that_are_none_sends_nothing(app: Celery, scene: RetryScene) -> None:
    for options in ({"retry_intervals": [-1]}, {"max_retries": -1}, {"retry_budget": 0.5}):
        with pytest.raises(ValueError, match=r"^plain: "):
            send(app, "plain", "done", **options)

    assert scene.left() == {}


# -- while it waits


def test_a_retry_that_waits_is_an_entry_like_others(
    app: Celery, delayq: DelayQ, scene: RetryScene, delayq_worker: StartWorker
) -> None:
    start(delayq_worker)
    for id in ("moved", "cancelled", "run"):
        send(app, "plain", "OSError", "done", id=id, retry_intervals=[3600])
    wait_until(lambda: delayq.count() == 3, TIMEOUT, "all wait")

    [found] = [each for each in delayq.list() if each.id == "cancelled"]
    assert (found.task, found.state, found.headers["retries"]) == ("plain", "scheduled", 1)
    assert 3595 < found.due.timestamp() - scene.now() <= 3600
    results = {id: AsyncResult(id, app=app) for id in ("moved", "cancelled", "run")}
    # Celery stores the state after the retry is sent.
    wait_until(lambda: {each.state for each in results.values()} == {"RETRY"}, TIMEOUT, "all tell")

    assert delayq.cancel("cancelled")
    assert delayq.reschedule("moved", countdown=0.1)
    assert delayq.run_now("run")

    assert results["moved"].get(timeout=TIMEOUT) == results["run"].get(timeout=TIMEOUT) == "done"
    assert results["cancelled"].state == "REVOKED"
    assert delayq.get("cancelled") is None
    assert scene.attempts("cancelled") == [0]
    assert [*delayq.dead_letters()] == []


@pytest.mark.parametrize("pool", ["solo", "prefork", "threads"])
def test_a_retry_is_made_once_although_its_worker_dies_before_it_acknowledges(
    pool: str, app: Celery, scene: RetryScene, delayq_worker: StartWorker
) -> None:
    doomed = start(delayq_worker, pool, delayq={"lease": 1})
    scene.client.set("hold:a", 1)
    result = send(app, "telling", "OSError", "done", id="a")
    wait_until(lambda: ("on_retry", "a", 0) in scene.told(), TIMEOUT, "its retry is sent")
    doomed.kill()
    scene.client.delete("hold:a")
    start(delayq_worker, pool, delayq={"lease": 1})

    assert result.get(timeout=TIMEOUT) == "done"

    scene.wait_empty()
    assert scene.runs("retries", "deliveries") == [(0, 1), (1, 1)]
