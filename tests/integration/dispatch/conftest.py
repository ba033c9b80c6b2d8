"""A connection of kombu, and ways to publish and consume on it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from kombu import Connection, Queue

from celery_delayq.testing import wait_until


@pytest.fixture
def connection(delayq_broker_url: str) -> Iterator[Connection]:
    with Connection(delayq_broker_url) as made:
        yield made


def dispatchers() -> list[threading.Thread]:
    """Return the dispatchers of this process: they end some time after their connections."""
    return [each for each in threading.enumerate() if each.name == "delayq-dispatcher"]


@pytest.fixture
def no_dispatchers() -> None:
    """Wait until the dispatchers of earlier tests have ended."""
    wait_until(lambda: not dispatchers(), what="those of earlier tests have ended")


def drain(
    connection: Connection, seconds: float = 0.15, *, until: Callable[[], object] = lambda: True
) -> None:
    """Handle what comes until a condition holds, and nothing has come for so many seconds."""

    def has_come() -> object:
        with suppress(TimeoutError):
            while True:
                connection.drain_events(timeout=seconds)
        return until()

    wait_until(has_come, what="what is to come", interval=0)


def publish(connection: Connection, queue: str, number: int) -> None:
    """Put the texts 0, 1, 2 … into a queue."""
    producer = connection.Producer()
    for n in range(number):
        producer.publish(str(n), routing_key=queue, declare=[Queue(queue)])
