"""Prefetch is exact: who is busy leaves the rest to who is idle."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from kombu import Connection, Consumer, Queue
from redis import Redis

from celery_delayq.testing import wait_until
from tests.apps.lease_tasks import held, unfinished
from tests.integration.dispatch.conftest import drain, publish
from tests.support import TIMEOUT
from tests.support.scene import Leases

TASKS = 20


def consumer(
    connection: Connection, queues: list[str], on_message: Callable[[Any], Any], **options: Any
) -> Consumer:
    """Return a consumer of *queues*, which last."""
    found = [Queue(name) for name in queues]
    return Consumer(connection.channel(), found, on_message=on_message, **options)


@pytest.mark.parametrize(
    ("pool", "options"),
    [
        pytest.param("solo", {"prefetch": 1}, id="solo"),
        pytest.param(
            "prefork", {"conf": {"worker_disable_prefetch": True}}, id="prefork, prefetch disabled"
        ),
        pytest.param("threads", {"prefetch": 1}, id="threads"),
    ],
)
def test_a_busy_worker_holds_its_prefetch_and_an_idle_one_gets_the_work(
    pool: str, options: dict[str, Any], leases: Leases
) -> None:
    workers = [
        leases.start(pool, name=name, queues=queues, wait_ready=False, **options)
        for name, queues in [("busy", ["celery", "hold"]), ("idle", ["celery"])]
    ]
    for worker in workers:
        worker.wait_ready()
    leases.app.send_task("lease.wait", queue="hold")
    wait_until(lambda: leases.runs("worker") == ["busy"], what="one is busy")

    # What is done may be held a moment longer: its acknowledgement is on its way.
    most: dict[str, int] = {}

    def all_done() -> bool:
        for name, number in unfinished(leases.client).items():
            most[name] = max(number, most.get(name, 0))
        return bool(leases.client.llen("log") == 1 + 2 * TASKS)

    for n in range(TASKS):
        leases.app.send_task("lease.nap", (0.05,), countdown=0.3, task_id=f"nap-{n:02}")
    wait_until(all_done, what="the idle one has done all", interval=0.002)

    assert sorted(most.values()) == [1, 1]
    runs = leases.runs("worker", "event", "id")[1:]
    assert runs == [("idle", event, id) for _, _, id in runs[::2] for event in ("started", "ended")]
    assert {id for _, _, id in runs} == {f"nap-{n:02}" for n in range(TASKS)}
    leases.client.rpush("go", "")
    wait_until(lambda: not leases.leased_ids(), what="all is acknowledged")


def test_a_worker_prefetches_its_multiple_and_no_more(leases: Leases) -> None:
    for _ in range(30):
        leases.app.send_task("lease.nap", (0.02,))
    leases.start("threads", concurrency=2, prefetch=3)
    most = 0

    def all_done() -> bool:
        nonlocal most
        most = max(most, *unfinished(leases.client).values(), 0)
        return bool(leases.client.llen("log") == 2 * 30)

    wait_until(all_done, what="all have run", interval=0.002)

    assert most == 6
    wait_until(lambda: not leases.leased_ids(), what="all is acknowledged")


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_a_consumer_never_holds_more_than_it_asked_for(
    limit: int, connection: Connection, redis: Redis
) -> None:
    got: list[Any] = []

    def has_leased(number: int) -> bool:
        return len(got) - done(got) >= number

    publish(connection, "a", 10)
    with consumer(connection, ["a"], got.append, prefetch_count=limit):
        while len(got) < 10:
            wanted = min(limit, 10 - done(got))
            drain(connection, until=partial(has_leased, wanted))
            assert len(got) - done(got) == wanted
            assert [*held(redis).values()] == [wanted]
            next(message for message in got if not message.acknowledged).ack()
        drain(connection)
    assert [message.payload for message in got] == [str(n) for n in range(10)]


def done(messages: list[Any]) -> int:
    """Return how many of the messages are acknowledged."""
    return sum(message.acknowledged for message in messages)


def test_a_limit_counts_for_all_queues_of_a_channel(connection: Connection, redis: Redis) -> None:
    got: list[Any] = []
    for queue in ("a", "b", "c"):
        publish(connection, queue, 5)
    with consumer(connection, ["a", "b", "c"], got.append, prefetch_count=4):
        drain(connection, until=lambda: len(got) >= 4)
        assert len(got) == 4
        assert list(held(redis).values()) == [4]


def test_a_rejected_message_makes_room_for_one(connection: Connection, redis: Redis) -> None:
    got: list[Any] = []
    publish(connection, "a", 3)
    with consumer(connection, ["a"], got.append, prefetch_count=1):
        drain(connection, until=lambda: got)
        got[0].reject()
        drain(connection, until=lambda: len(got) >= 2)
        assert [message.payload for message in got] == ["0", "1"]
        got[1].requeue()
        drain(connection, until=lambda: len(got) >= 3)
        assert [message.payload for message in got] == ["0", "1", "2"]
        got[2].ack()
        drain(connection, until=lambda: len(got) >= 4)
        assert [message.payload for message in got] == ["0", "1", "2", "1"]
        assert list(held(redis).values()) == [1]


def test_without_a_limit_one_at_a_time_is_taken_from_whichever_queue(
    connection: Connection, redis: Redis
) -> None:
    got: list[Any] = []
    for queue in ("a", "b"):
        publish(connection, queue, 3)
    with consumer(connection, ["a", "b"], got.append):
        for number in range(1, 7):
            connection.drain_events(timeout=TIMEOUT)
            assert len(got) == number
            assert sum(held(redis).values()) == number


def test_cancelling_gives_back_what_was_not_handed_out_in_its_order(
    connection: Connection, redis: Redis
) -> None:
    got: list[Any] = []
    publish(connection, "a", 10)
    before = redis.lrange("a", 0, -1)
    with consumer(connection, ["a"], got.append, prefetch_count=8):
        connection.drain_events(timeout=TIMEOUT)
        connection.drain_events(timeout=TIMEOUT)
        in_hand = len(got)
    wait_until(lambda: sum(held(redis).values()) == in_hand, what="the rest is back")
    assert redis.lrange("a", 0, -1) == before[: 10 - in_hand]
    connection.close()
    assert redis.lrange("a", 0, -1) == before
    assert not held(redis)
