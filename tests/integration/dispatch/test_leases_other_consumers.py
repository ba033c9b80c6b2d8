"""Consumers without acknowledgement, SimpleQueue, remote control, events: nothing stays behind."""

from __future__ import annotations

from queue import Empty
from typing import Any

import pytest
from kombu import Connection, Consumer, Queue
from redis import Redis

from celery_delayq.testing import wait_until
from tests.apps.lease_tasks import held
from tests.integration.conftest import MakeApp
from tests.integration.dispatch.conftest import drain
from tests.support import TIMEOUT
from tests.support.keyspace import snapshot
from tests.support.scene import StartWorker, answer, start_worker

#: What belongs to kombu, or to a queue that lasts, and not to what was done.
STAYS = ("_kombu.", "delayq:queues", "delayq:clock", "delayq:lease_ends")

#: What a dispatcher removes when the lease of a process has ended.
ENDS = ("}:leases", "}:request_numbers")


def left(client: Redis) -> set[str]:
    """Return the keys that should not be there any more; some go by themselves, later."""
    return {
        key
        for key in snapshot(client)
        if not key.startswith(STAYS) and not key.endswith(ENDS) and client.pttl(key) == -1
    }


def test_a_consumer_without_acknowledgement_leases_nothing(
    connection: Connection, redis: Redis
) -> None:
    simple = connection.SimpleQueue("a", no_ack=True)
    for n in range(5):
        simple.put(n)
    got = []
    for _ in range(5):
        got.append(simple.get(timeout=TIMEOUT).payload)
        assert not held(redis)
    simple.close()

    assert got == list(range(5))
    assert left(redis) == set()


def test_consumers_with_and_without_acknowledgement_share_a_channel(
    connection: Connection, redis: Redis
) -> None:
    got: list[tuple[str, str]] = []

    def take(message: Any) -> None:
        got.append((message.delivery_info["routing_key"], message.payload))
        if message.delivery_info["routing_key"] == "acked":
            message.ack()

    channel = connection.channel()
    producer = connection.Producer()
    for n in range(4):
        for queue in ("acked", "free"):
            producer.publish(str(n), routing_key=queue, declare=[Queue(queue)])
    with (
        Consumer(channel, [Queue("acked")], on_message=take),
        Consumer(channel, [Queue("free")], on_message=take, no_ack=True),
    ):
        drain(connection, until=lambda: len(got) >= 8)
    channel.close()

    assert sorted(got) == [(queue, str(n)) for queue in ("acked", "free") for n in range(4)]
    wait_until(lambda: not held(redis), what="all is acknowledged")
    assert left(redis) == set()


def test_a_simple_queue_gives_acknowledges_and_requeues(
    connection: Connection, redis: Redis
) -> None:
    simple = connection.SimpleQueue("a")
    for n in range(3):
        simple.put({"n": n})

    first = simple.get(timeout=TIMEOUT)
    assert (first.payload, sum(held(redis).values())) == ({"n": 0}, 1)
    first.requeue()
    assert len(simple) == 3
    again = [simple.get(timeout=TIMEOUT) for _ in range(3)]
    assert [message.payload["n"] for message in again] == [1, 2, 0]
    assert [message.delivery_info.get("redelivered", False) for message in again] == [
        False,
        False,
        True,
    ]
    again[0].ack()
    again[1].reject()
    again[2].ack()
    with pytest.raises(Empty):
        simple.get(timeout=0.1)
    with pytest.raises(Empty):
        simple.get_nowait()
    simple.close()
    connection.close()

    wait_until(lambda: not held(redis), what="all is acknowledged")
    assert left(redis) == {"{a}:dead", "{a}:dead_at"}


def test_a_single_get_leases_unless_it_needs_no_acknowledgement(
    connection: Connection, redis: Redis
) -> None:
    channel = connection.channel()
    queue = Queue("a")(channel)
    queue.declare()
    for n in range(4):
        connection.Producer().publish(str(n), routing_key="a", priority=n * 3)

    leased = queue.get()
    free = queue.get(no_ack=True)
    assert (leased.payload, free.payload) == ("0", "1")
    assert sum(held(redis).values()) == 1
    leased.ack()
    back = queue.get()
    back.requeue()
    assert [queue.get(no_ack=True).payload for _ in range(2)] == ["2", "3"]
    assert queue.get() is None
    assert queue.get(no_ack=True) is None
    channel.close()

    wait_until(lambda: not held(redis), what="all is acknowledged")
    # It was requeued once. A consumer without a lease does not read the counts.
    assert left(redis) - {"{a}:deliveries"} == set()


def test_a_single_get_passes_over_what_is_no_message(connection: Connection, redis: Redis) -> None:
    channel = connection.channel()
    queue = Queue("a")(channel)
    queue.declare()
    redis.lpush("a", b"\xff no message")
    connection.Producer().publish("one", routing_key="a")

    assert queue.get().payload == "one"
    assert [value.partition(b"\n")[2] for value in redis.hvals("{a}:dead")] == [b"\xff no message"]


EVENTS = "task-received", "task-started", "task-succeeded"


def test_remote_control_results_and_events_leave_nothing_behind(
    make_app: MakeApp, delayq_worker: StartWorker, redis: Redis
) -> None:
    worker = start_worker(
        delayq_worker, "stock_tasks", "solo", result_backend="rpc://", args=["--task-events"]
    )
    asking = make_app(result_backend="rpc://")
    seen: list[str] = []

    with asking.connection_for_read() as connection:
        receiver = asking.events.Receiver(
            connection, handlers={"*": lambda event: seen.append(event["type"])}
        )
        with receiver.consumer_context() as (listening, _, _):
            drain(listening)  # subscribes
            assert answer(asking, worker.hostname, "ping") == {"ok": "pong"}
            assert answer(asking, worker.hostname, "stats")["pid"] == worker.pid
            results = [asking.send_task("stock.add", (n, n), countdown=0.1) for n in range(3)]
            assert [result.get(timeout=TIMEOUT) for result in results] == [0, 2, 4]
            drain(listening, until=lambda: {*EVENTS} <= {*seen})
    asking.close()
    worker.stop()

    assert left(redis) == set()
    # The worker cannot know that a queue for replies is temporary, and counts its messages.
    assert redis.keys("*}:totals") == [b"{celery}:totals"]
