"""kombu makes no copies of queues and exchanges that are declared already."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kombu import Connection, Producer, Queue
from kombu.entity import Exchange
from kombu.pools import ProducerPool
from kombu.transport.memory import Transport

from celery_delayq.integration.fast.declared import GROUP
from celery_delayq.integration.replace import make, undo


class Ours(Transport):
    """Has what only transports of this package have."""

    batches = 0


def noting(bind: Any, copied: list[Any]) -> Any:
    def bind_and_note(entity: Any, channel: Any) -> Any:
        copied.append(entity)
        return bind(entity, channel)

    return bind_and_note


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The queues and exchanges that are copied with the changes made."""
    copied: list[Any] = []
    for kind in (Queue, Exchange):
        monkeypatch.setattr(kind, "bind", noting(kind.bind, copied))
    undo(GROUP.process)
    make(GROUP.process)
    yield copied
    undo(GROUP.process)


def test_a_queue_is_declared_once_and_copied_no_more(copied: list[Any]) -> None:
    queue = Queue("declared-once", Exchange("declared-once"), "key")
    with Connection(transport=Ours) as connection:
        pool = ProducerPool(connection.Pool(1), limit=1)
        found = []
        for _ in range(3):
            with pool.acquire() as producer:
                found.append(producer.maybe_declare(queue))
                seen = len(copied)

        assert (found, producer.exchange.name) == ([True, False, False], "")
        with pool.acquire() as producer:
            producer.maybe_declare(queue)
        assert len(copied) == seen


def test_a_queue_that_expires_is_declared_each_time(copied: list[Any]) -> None:
    queue = Queue("expires", Exchange("expires"), "key", queue_arguments={"x-expires": 60_000})
    with Connection(transport=Ours) as connection:
        producer = Producer(connection.default_channel)

        assert [producer.maybe_declare(queue) for _ in range(2)] == [True, True]


def test_a_connection_of_another_transport_is_left_as_it_is(copied: list[Any]) -> None:
    with Connection("memory://") as connection:
        producer = ProducerPool(connection.Pool(1), limit=1).acquire()
        producer.maybe_declare(Queue("stock", Exchange("stock"), "key"))
        seen = len(copied)
        producer.maybe_declare(Queue("stock", Exchange("stock"), "key"))

        assert (type(producer.exchange), len(copied) > seen) == (Exchange, True)
