"""Failed tasks are retried as their policy says: how often, when, and after which failures."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from celery.result import AsyncResult

from celery_delayq import DelayQ
from celery_delayq.model.retries.policy import Exponential
from celery_delayq.testing import POOLS, wait_until
from tests.apps.retry_tasks import Act, RetryScene
from tests.support import TIMEOUT
from tests.support.brokers import Broker


def send(scene: RetryScene, task: str, *acts: Act, id: str = "", **options: Any) -> AsyncResult:
    """Send a task that follows *acts*; its id is its name by default."""
    return scene.send(task, *acts, id=id or task, **options)


# -- how often, and when


@pytest.mark.conformance
@pytest.mark.parametrize("pool", POOLS)
def test_attempts_and_waits_are_those_of_the_policy(
    pool: str, delayq: DelayQ, scene: RetryScene
) -> None:
    """With late acknowledgement and, for ``early``, with early acknowledgement."""
    scene.start(pool)
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
    results = [send(scene, name, "ValueError") for name in expected]
    results += [
        send(scene, "steps", "OSError", "OSError", "done", id="late success"),
        send(scene, "early", "KeyError", "done", id="early success"),
    ]

    found = scene.ends(results)

    failed = dict.fromkeys(expected, "ValueError('as told')")
    assert found == failed | {"late success": "done", "early success": "done"}
    scene.wait_dead(*expected)
    dead_letters = {dead_letter.task_id: dead_letter for dead_letter in delayq.dead_letters()}
    assert set(dead_letters) == set(expected)
    assert {id: dead_letter.retries for id, dead_letter in dead_letters.items()} == {
        id: len(waits) for id, waits in expected.items()
    }
    expected |= {"late success": [0.1, 0.3], "early success": [0.1]}
    scene.assert_waits(expected)
    assert {id: scene.attempts(id) for id in expected} == {
        id: list(range(len(waits) + 1)) for id, waits in expected.items()
    }
    scene.wait_empty()


def test_no_attempt_of_an_idle_worker_is_early(scene: RetryScene) -> None:
    scene.start()
    policy = [0.1, 0.25, 0.05, 0.3, 0.15, 0.2, 0.1, 0.35, 0.05, 0.2]

    scene.ends([send(scene, "plain", "ValueError", retry_intervals=policy)])

    late = [after - wait for after, wait in zip(scene.waits("plain"), policy, strict=True)]
    assert min(late) >= 0


def test_jitter_shortens_waits_within_its_part(scene: RetryScene) -> None:
    scene.start("threads", concurrency=4)
    results = [send(scene, "jittery", "ValueError", id=str(n)) for n in range(5)]
    results.append(send(scene, "jittery", "ValueError", id="none", retry_jitter=False))

    scene.ends(results)

    waits = [wait for n in range(5) for wait in scene.waits(str(n))]
    assert len(waits) == 20
    assert min(waits) >= 0.2
    # All are as late as the machine is busy.
    assert min(waits) < min(scene.waits("none")), "none was shortened"
    assert len({round(wait, 3) for wait in waits}) > 5
    assert min(scene.waits("none")) >= 0.4


# -- after which failures


def test_what_is_covered_is_tried_again_and_nothing_else(
    app: Celery, delayq: DelayQ, scene: RetryScene
) -> None:
    scene.start()
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
        send(scene, task, *acts, id=id)
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


def test_a_soft_time_limit_is_a_failure_like_others(scene: RetryScene) -> None:
    scene.start("prefork")

    assert send(scene, "limited", ["nap", TIMEOUT], "done").get(timeout=TIMEOUT) == "done"
    assert scene.attempts("limited") == [0, 1]


# -- manually


def test_a_manual_retry_has_the_waits_and_the_limit_of_the_policy_unless_it_says_more(
    delayq: DelayQ, scene: RetryScene
) -> None:
    scene.start("threads", concurrency=8)
    here, there = scene.queues[0], scene.queues[-1]  # of one hash tag each, on a cluster
    to_other = ["retry", {"countdown": 0.3, "queue": there}]
    results = [
        send(scene, "steps", "retry", id="plain"),
        send(scene, "steps", "caught", id="with its reason"),
        send(scene, "steps", ["retry", {"countdown": 0.5}], "done", id="own wait"),
        send(scene, "steps", ["retry", {"countdown": 0}], "done", id="no wait"),
        send(scene, "steps", ["retry", {"max_retries": 1}], id="own limit"),
        send(scene, "steps", ["retry", {"max_retries": 5}], id="higher limit"),
        send(scene, "steps", ["caught", {"max_retries": 1}], id="own limit and reason"),
        send(scene, "auto", ["caught", {"max_retries": 1}], id="beside autoretry"),
        send(scene, "steps", to_other, "done", id="queue", queue=here),
        send(scene, "plain", ["retry", {"countdown": 0.2}], "done", id="no policy"),
    ]

    found = scene.ends(results)

    scene.assert_waits(
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
    scene.wait_dead("plain", "own limit", "higher limit")
    dead_letters = {
        dead_letter.task_id: dead_letter.exception for dead_letter in delayq.dead_letters()
    }
    assert dead_letters["plain"] == "MaxRetriesExceededError"
    scene.wait_empty()
    went: dict[str, list[str]] = {id: [] for id in found}
    for id, queue in scene.runs("id", "queue"):
        went[id].append(queue)
    assert went.pop("queue") == [here, there]
    assert all(len({*queues}) == 1 for queues in went.values())


# -- a policy for one call


def test_a_call_has_a_policy_of_its_own(scene: RetryScene) -> None:
    scene.start("threads", concurrency=8)
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
        send(scene, task, "OSError", id=id, **options) for id, (task, options, _) in cases.items()
    ]

    scene.ends(results)

    scene.assert_waits({id: waits for id, (_, _, waits) in cases.items()})
    scene.wait_dead(*cases)
    scene.wait_empty()


def test_what_is_refused_stays_refused_whatever_the_call_says(scene: RetryScene) -> None:
    scene.start()
    again: dict[str, Any] = {"retry_intervals": [0, 0]}

    scene.ends(
        [
            send(scene, "choosy", "FileNotFoundError", id="refused", **again),
            send(scene, "choosy", "ValueError", id="not covered", **again),
            send(scene, "auto.plain", "FileNotFoundError", id="by us", **again),
            send(scene, "auto.plain", "ConnectionError", id="by Celery", **again),
            send(scene, "auto.plain", "ValueError", id="all others", **again),
        ]
    )

    attempts = {id: len(scene.attempts(id)) for id in scene.runs("id")}
    expected = {"refused": 1, "not covered": 1, "by us": 1, "by Celery": 1, "all others": 3}
    assert attempts == expected


@pytest.mark.parametrize("task", ["plain", "steps"])
def test_a_task_that_is_delivered_again_has_the_policy_of_its_call(
    task: str, scene: RetryScene, broker: Broker
) -> None:
    doomed = scene.start(delayq=broker.soon)
    send(scene, task, "die once", id="first", retry_intervals=[0.3, 0.1])
    assert doomed.wait() == -9
    scene.start(delayq=broker.soon)
    send(scene, task, "ValueError", id="second", retry_intervals=[0.3, 0.1])
    send(scene, task, ["nap", 0], id="third", retry_intervals=[0.3, 0.1])

    scene.wait_dead("second")
    scene.wait_empty()

    runs = scene.runs("id", "retries", "deliveries")
    assert [run[1:] for run in runs if run[0] == "first"] == [(0, 1), (0, 2)]
    assert [run[1:] for run in runs if run[0] == "second"] == [(0, 1), (1, 1), (2, 1)]


def test_a_retry_that_is_delivered_again_has_the_policy_of_its_call(
    app: Celery, scene: RetryScene, broker: Broker
) -> None:
    doomed = scene.start(delayq=broker.soon)
    # A new worker's event loop may acknowledge its first message one second later.
    scene.ends([send(scene, "plain", id="first")])
    acts: list[Act] = ["ValueError", "die once", "ValueError"]
    send(scene, "plain", *acts, id="a", retry_intervals=[0.1, 0.2, 0.3], retry_jitter=0.1)
    assert doomed.wait() == -9
    scene.start(delayq=broker.soon)

    assert AsyncResult("a", app=app).get(timeout=TIMEOUT) == "done"

    runs = scene.runs("id", "retries", "deliveries")[1:]
    assert runs == [("a", 0, 1), ("a", 1, 1), ("a", 1, 2)]


# -- defaults


def test_an_app_gives_its_tasks_a_policy_by_their_names(scene: RetryScene) -> None:
    """The first pattern that matches counts; options of a task override it."""
    defaults = {"steps": [0.5], "pl?in": [0.1, 0.2], "shoo.*": [1], "*": [0.3]}
    worker = scene.start("threads", concurrency=8, conf={"retry": defaults})

    scene.ends(
        [
            send(scene, name, "OSError")
            for name in ("plain", "steps", "exempt", "never", "auto", "strict.plain")
        ]
    )

    scene.assert_waits(
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


def test_a_worker_does_not_start_with_options_that_are_none(scene: RetryScene) -> None:
    worker = scene.start(conf={"invalid": {"retry_intervals": []}}, wait_ready=False)

    assert worker.wait() != 0

    problem = "retry_intervals=[] is empty: expected seconds"
    assert f"The worker cannot start: task invalid: {problem}" in worker.log
    assert " ready." not in worker.log


def test_a_call_with_options_that_are_none_sends_nothing(scene: RetryScene) -> None:
    for options in ({"retry_intervals": [-1]}, {"max_retries": -1}, {"retry_budget": 0.5}):
        with pytest.raises(ValueError, match=r"^plain: "):
            send(scene, "plain", "done", **options)

    assert scene.unfinished() == {}


#: Attempts and deliveries if a worker dies between sending a retry and acknowledging. On Redis both
#: are one step. On RabbitMQ the retry is confirmed first, so the attempt comes again.
BETWEEN = {
    "redis": [(0, 1), (1, 1)],
    "cluster": [(0, 1), (1, 1)],
    "rabbitmq": [(0, 1), (0, 2), (1, 1), (1, 1)],
}


@pytest.mark.parametrize("pool", ["solo", "prefork", "threads"])
def test_a_retry_is_not_lost_when_its_worker_dies_before_it_acknowledges(
    pool: str, scene: RetryScene, broker: Broker
) -> None:
    doomed = scene.start(pool, delayq=broker.soon)
    scene.client.set("hold:a", 1)
    # The retry must not come before the worker is dead.
    send(scene, "telling", "OSError", "done", id="a", retry_intervals=[5])
    wait_until(lambda: ("on_retry", "a", 0) in scene.told(), TIMEOUT, "its retry is sent")
    doomed.kill()
    scene.client.delete("hold:a")
    scene.start(pool, delayq=broker.soon)

    scene.wait_runs(len(BETWEEN[broker.name]))

    scene.wait_empty()
    assert sorted(scene.runs("retries", "deliveries")) == BETWEEN[broker.name]
