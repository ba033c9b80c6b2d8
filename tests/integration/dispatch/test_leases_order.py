"""In which order messages of several queues and priorities come, as kombu documents it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from celery.utils.nodenames import worker_direct
from kombu import Connection, Consumer, Queue

from celery_delayq.testing import wait_until
from tests.support import TIMEOUT
from tests.support.scene import Leases


@pytest.fixture
def connect(delayq_broker_url: str) -> Iterator[Callable[[str], Connection]]:
    """Open a connection with a queue order strategy."""
    made: list[Connection] = []

    def open_one(strategy: str) -> Connection:
        options = {"queue_order_strategy": strategy}
        made.append(Connection(delayq_broker_url, transport_options=options))
        return made[-1]

    yield open_one
    for connection in made:
        connection.close()


def publish(connection: Connection, *texts: str) -> None:
    """Send messages such as a0-1: to queue a with priority 0, number 1."""
    producer = connection.Producer()
    for text in texts:
        producer.publish(text, routing_key=text[0], priority=int(text[1]), declare=[Queue(text[0])])


def consume(
    connection: Connection, queues: str, number: int, prefetch: int, then: Any = None
) -> list[str]:
    """Return *number* messages, each acknowledged before the next; *then* publishes more."""
    got: list[str] = []

    def take(message: Any) -> None:
        got.append(message.payload)
        message.ack()

    found = [Queue(name) for name in queues]
    channel = connection.channel()
    with Consumer(channel, found, on_message=take, prefetch_count=prefetch):
        while len(got) < number:
            connection.drain_events(timeout=TIMEOUT)
            if then is not None and then(len(got)):
                then = None
        with suppress(socket.timeout):
            connection.drain_events(timeout=0.05)
    channel.close()
    return got


def numbered(queue: str, priority: int, number: int) -> list[str]:
    return [f"{queue}{priority}-{n}" for n in range(number)]


@pytest.mark.parametrize("prefetch", [1, 4, 0])
def test_round_robin_takes_one_of_each_queue_in_turn_within_a_priority(
    connect: Callable[[str], Connection], prefetch: int
) -> None:
    connection = connect("round_robin")
    for priority in (9, 0):
        for queue in "abc":
            publish(connection, *numbered(queue, priority, 4))

    got = consume(connection, "abc", 24, prefetch)

    assert sorted(text[1] for text in got) == [text[1] for text in got]
    for start in range(0, 24, 3):
        assert sorted(text[0] for text in got[start : start + 3]) == ["a", "b", "c"], got
    for queue in "abc":
        of_queue = [text for text in got if text[0] == queue]
        assert of_queue == numbered(queue, 0, 4) + numbered(queue, 9, 4)


@pytest.mark.parametrize("prefetch", [1, 4, 0])
@pytest.mark.parametrize(
    ("strategy", "queues", "order"),
    [("priority", "bca", "bca"), ("sorted", "bca", "abc")],
    ids=["priority", "sorted"],
)
def test_an_ordered_strategy_empties_one_queue_after_the_other_within_a_priority(
    connect: Callable[[str], Connection], strategy: str, queues: str, order: str, prefetch: int
) -> None:
    connection = connect(strategy)
    for priority in (9, 0):
        for queue in "abc":
            publish(connection, *numbered(queue, priority, 4))

    got = consume(connection, queues, 24, prefetch)

    assert got == [
        text for priority in (0, 9) for queue in order for text in numbered(queue, priority, 4)
    ]


@pytest.mark.parametrize("strategy", ["round_robin", "sorted"])
def test_what_is_urgent_comes_before_what_is_not_also_when_it_came_later(
    connect: Callable[[str], Connection], strategy: str
) -> None:
    """A queue whose most urgent message was not urgent when it was last asked."""
    connection = connect(strategy)
    publish(connection, *numbered("a", 9, 3), *numbered("b", 0, 8))

    def something_urgent(number: int) -> bool:
        if number == 3:
            publish(connection, "a0-late")
        return number == 3

    got = consume(connection, "ab", 12, 1, something_urgent)

    assert "a0-late" in got[3:5], got
    assert [text for text in got if text[1] == "9"] == got[-3:]


def test_one_full_queue_does_not_keep_the_others_from_their_turn(
    connect: Callable[[str], Connection],
) -> None:
    connection = connect("round_robin")
    publish(connection, *numbered("a", 0, 30), *numbered("b", 0, 2))

    def more(number: int) -> bool:
        if number == 12:
            publish(connection, *numbered("b", 0, 2))
        return number == 12

    got = consume(connection, "ab", 34, 1, more)

    assert [text for text in got[:4] if text[0] == "b"] == numbered("b", 0, 2)
    assert [text for text in got[12:17] if text[0] == "b"] == numbered("b", 0, 2), got


def test_a_worker_serves_queues_that_last_and_that_do_not_alike(leases: Leases) -> None:
    worker = leases.start(prefetch=1, conf={"worker_direct": True, "temporary": "temporary"})
    queues = {
        "lasting": Queue("celery"),
        "direct": worker_direct(worker.hostname),
        "temporary": Queue("temporary", auto_delete=True),
    }

    def run(id: str, queue: Queue) -> None:
        leases.app.send_task("lease.add", (1, 1), task_id=id, queue=queue)
        wait_until(lambda: id in leases.runs("id"), what=f"{id} runs")

    for n in range(3):
        for name, queue in queues.items():
            run(f"{name} {n}", queue)

    for n in range(40):
        leases.app.send_task("lease.nap", (0.05,), task_id=f"busy {n}")
    wait_until(lambda: leases.client.llen("log") > 9, what="it is busy")
    others = ["direct", "temporary"]
    for name in others:
        leases.app.send_task("lease.add", (1, 1), task_id=name, queue=queues[name])
    wait_until(lambda: "busy 39" in leases.runs("id"), what="all that kept it busy has run")
    ran = leases.runs("id")
    assert max(map(ran.index, others)) < ran.index("busy 39")
