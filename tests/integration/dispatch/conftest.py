"""A connection of kombu, and ways to publish and consume on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest
from kombu import Connection, Queue


@pytest.fixture
def connection(delayq_broker_url: str) -> Iterator[Connection]:
    with Connection(delayq_broker_url) as made:
        yield made


def drain(connection: Connection, seconds: float = 0.15) -> None:
    """Handle what comes until nothing has come for so long."""
    with suppress(TimeoutError):
        while True:
            connection.drain_events(timeout=seconds)


def publish(connection: Connection, queue: str, number: int) -> None:
    """Put the texts 0, 1, 2 … into a queue."""
    producer = connection.Producer()
    for n in range(number):
        producer.publish(str(n), routing_key=queue, declare=[Queue(queue)])
