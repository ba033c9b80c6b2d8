"""``retry()`` under late acknowledgement is one step: the retry takes the place of its message."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery, chain, chord
from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.testing import wait_until
from tests.support import SHORT_LEASE, TIMEOUT
from tests.support.scene import Leases

LEASE = {"lease": SHORT_LEASE}


def leased(client: Redis) -> list[bytes]:
    """Return what processes hold: their step and the message, or nothing after a retry."""
    return [value for key in client.keys("*:leased:*") for value in client.hvals(key)]


def wait_nothing_left(leases: Leases) -> None:
    """Wait until no message is scheduled, ready or held, and see that none is counted or dead."""
    for queue in ("celery", "other"):
        leases.wait_empty(queue)
    assert not leases.client.exists("{celery}:deliveries", "{celery}:dead")


@pytest.mark.parametrize("pool", ["solo", "prefork"])
def test_retries_of_all_kinds_come_to_their_end(
    pool: str, app: Celery, leases: Leases, redis: Redis
) -> None:
    leases.start(pool, queues=["celery", "other"])

    def again(*args: Any, **kwargs: Any) -> Any:
        return app.signature("lease.again", args, kwargs)

    add, total = app.signature("lease.add", (10,)), app.signature("lease.total")
    results = {
        "plain": (again(1).apply_async(task_id="plain"), 1),
        "twice": (again(2, times=2).apply_async(task_id="twice"), 2),
        "scheduled": (again(3).apply_async(countdown=0.2, task_id="scheduled"), 3),
        "at once": (again(4, countdown=0).apply_async(task_id="at once"), 4),
        "elsewhere": (again(5, queue="other").apply_async(task_id="elsewhere"), 5),
        "urgent": (again(6, priority=9).apply_async(task_id="urgent"), 6),
        "auto": (app.send_task("lease.auto", task_id="auto"), "at last"),
        "early": (app.send_task("lease.early", task_id="early"), "at last"),
        "chain": (chain(again(7), add).apply_async(), 17),
        "chord": (chord([again(8), again(9)])(total), 17),
    }

    got = {name: result.get(timeout=TIMEOUT) for name, (result, _) in results.items()}

    assert got == {name: expected for name, (_, expected) in results.items()}
    attempts: dict[str, list[Any]] = {}
    for id, retries, deliveries, queue in leases.runs("id", "retries", "deliveries", "queue"):
        assert deliveries == 1
        attempts.setdefault(id, []).append((retries, queue) if id == "elsewhere" else retries)
    named = {name: attempts[name] for name in results if name in attempts}
    assert named == {
        "plain": [0, 1],
        "twice": [0, 1, 2],
        "scheduled": [0, 1],
        "at once": [0, 1],
        "elsewhere": [(0, "celery"), (1, "other")],
        "urgent": [0, 1],
        "auto": [0, 1],
        "early": [0, 1],
    }
    assert redis.llen("log") == 17 + 3 + 5
    wait_nothing_left(leases)


def test_a_worker_killed_between_retry_and_acknowledgement_has_made_one_step(
    app: Celery, leases: Leases, redis: Redis
) -> None:
    doomed = leases.start(delayq=LEASE)
    app.send_task("lease.retry_and_wait", (3600,), task_id="a")
    wait_until(lambda: "retried" in leases.runs("event"), what="it has sent its retry")
    assert leases.scheduled() == [("a", 1)]
    doomed.kill()
    assert leased(redis) == [b""]
    assert redis.llen("celery") == 0

    assert leases.delayq.run_now("a")
    leases.start(delayq=LEASE)
    wait_until(lambda: redis.llen("log") >= 3, what="the retry has run")
    wait_until(lambda: redis.zcard("{celery}:leases") == 1 or not leased(redis), what="reclaimed")
    wait_nothing_left(leases)

    ran = leases.runs("event", "retries", "deliveries")
    assert ran == [("ran", 0, 1), ("retried", 0, 1), ("ran", 1, 1)]


def test_a_retry_whose_message_was_given_to_others_is_void(
    app: Celery, leases: Leases, redis: Redis
) -> None:
    """Whoever has the message now makes its own retry."""
    worker = leases.start()
    app.send_task("lease.wait_and_retry", (0.2,), task_id="a")
    wait_until(lambda: redis.llen("log") == 1, what="it is at work")
    [key] = redis.keys("*:leased:*")
    [field] = redis.hkeys(key)
    # As a dispatcher does when it was not heard for longer than its lease.
    worker_id = key.decode().rpartition(":")[2]
    DelayQ.of(app).store.leases.requeue("celery", worker_id, [field.decode()], counted="requeued")
    redis.rpush("go", "")

    wait_until(lambda: redis.llen("log") == 2, what="it is at work again")
    worker.wait_log("The retry of task 'a' is void")
    assert leases.scheduled() == []
    redis.rpush("go", "")

    wait_until(lambda: redis.llen("log") == 3, what="the retry has run")
    wait_nothing_left(leases)
    ran = leases.runs("retries", "deliveries", "redelivered")
    assert ran == [(0, 1, False), (0, 2, True), (1, 1, False)]


def test_a_retry_of_an_early_acknowledged_task_is_a_message_like_others(
    app: Celery, leases: Leases, redis: Redis
) -> None:
    """Killed right after the retry was sent, nothing of the first attempt comes back either.

    Not in a solo pool: there Celery acknowledges when the task is done, early or late.
    """
    doomed = leases.start("prefork", conf={"at_least_once": False}, delayq=LEASE)
    app.send_task("lease.retry_and_wait", (3600,), task_id="a")
    wait_until(lambda: "retried" in leases.runs("event"), what="it has sent its retry")
    wait_until(lambda: not leases.leased_ids(), what="its acknowledgement has arrived")
    assert leases.scheduled() == [("a", 1)]
    doomed.kill()
    assert leases.delayq.run_now("a")

    leases.start(conf={"at_least_once": False}, delayq=LEASE)
    wait_until(lambda: redis.llen("log") == 3, what="the retry has run")
    wait_nothing_left(leases)
    assert leases.runs("retries") == [0, 0, 1]
