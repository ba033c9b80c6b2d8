"""A task can read how often it was delivered, and that this is not the first time."""

from __future__ import annotations

import pytest
from kombu import Connection

from celery_delayq.testing import wait_until
from tests.support import TIMEOUT
from tests.support.scene import Leases

AGAIN = [(1, False), (2, True)]


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_after_a_reject_with_requeue_it_is_the_second_delivery(pool: str, leases: Leases) -> None:
    leases.start(pool)
    result = leases.app.send_task("lease.reject", (True,), countdown=0.1)

    assert result.get(timeout=TIMEOUT) == "accepted"

    assert leases.runs("deliveries", "redelivered") == AGAIN
    wait_until(lambda: not leases.leased_ids(), what="all is acknowledged")
    assert not leases.client.exists("{celery}:deliveries")


def test_what_was_only_prefetched_and_requeued_was_not_delivered(
    connection: Connection, delayq_broker_url: str
) -> None:
    simple = connection.SimpleQueue("a")
    for n in range(3):
        simple.put(n)
    simple.consumer.qos(prefetch_count=3)
    assert simple.get(timeout=TIMEOUT).payload == 0
    connection.drain_events(timeout=TIMEOUT)
    in_hand = 1 + len(simple.buffer)
    assert in_hand < 3
    simple.close()
    connection.close()

    with Connection(delayq_broker_url) as other:
        before = [message(other) for _ in range(3)]
    assert before == [(n, 2 if n < in_hand else 1, n < in_hand) for n in range(3)]


def message(connection: Connection) -> tuple[int, int, bool]:
    """Take a message for good; return its text and what it says of its deliveries."""
    simple = connection.SimpleQueue("a")
    found = simple.get_nowait()
    found.ack()
    simple.close()
    deliveries = found.properties["delayq"]["deliveries"]
    return found.payload, deliveries, found.delivery_info.get("redelivered", False)
