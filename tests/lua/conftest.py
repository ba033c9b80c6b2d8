"""A store on an empty Redis, and easy ways to make entries and to hold messages."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from celery_delayq.keys import Keys, Layout
from celery_delayq.lease_store import Reserved
from celery_delayq.message import Due, Entry, Record
from celery_delayq.store import Store
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.support.keyspace import snapshot
from tests.support.model_clock import lease_now, relative

QUEUE = "q"

#: Seconds: ten minutes, so that no time that a test takes counts.
LEASE = 600.0

#: Messages that whoever looks into them would spoil.
JUNK = {
    "binary": bytes(range(256)),
    "empty": b"",
    "newlines": b"\n\nsecond line\n",
    "begins-with-the-mark": b"!\nis not delivered alone",
    "looks-held": b"3!\n{}",
    "large": bytes(range(256)) * 4096,
}

any_bytes = pytest.mark.parametrize("message", JUNK.values(), ids=JUNK)


@pytest.fixture
def store(delayq_redis: RedisUnderTest) -> Store:
    return Store(delayq_redis.client, Keys(), Layout())


@pytest.fixture
def watched(store: Store) -> None:
    """A dispatcher has looked just now, so lease time passes."""
    store.agenda()


def entry(
    id: str = "a",
    due_ms: int = 0,
    *,
    relative: bool = False,
    priority: int = 0,
    nonce: str | None = None,
    task: str = "tasks.t",
    message: bytes | None = None,
) -> Entry:
    """Return an entry whose message names its id."""
    body = message if message is not None else b'{"id": "%s"}' % id.encode()
    record = Record(priority, nonce or f"n-{id}", task, body)
    return Entry(id, Due(due_ms, relative), priority, record.pack())


def fill(store: Store) -> None:
    """Leave the server no memory for anything new."""
    store.client.config_set("maxmemory-policy", "noeviction")
    store.client.config_set("maxmemory", 1)


def state(store: Store) -> dict[str, Any]:
    """Return the whole key space but the nonces, ends of leases in minutes from now.

    A nonce stays until the lease is reaped; its own tests look at it.
    """
    found = relative(snapshot(store.client), lease_now(store.client))
    return {key: value for key, value in found.items() if not key.endswith(":nonces")}


def push(store: Store, *messages: bytes, step: int = 0, queue: str = QUEUE) -> None:
    """Make messages ready, the first to run first."""
    call = store.ready_call(queue)
    for message in messages:
        call.add(step, message)
    store.run(call)


def reserve(
    store: Store,
    nonce: str = "1",
    limit: int = 10,
    *,
    who: str = "me",
    lists: int = 4,
    others: int = 0,
    queue: str = QUEUE,
) -> Reserved:
    """Lease messages."""
    call = store.leases.reserve_call(queue, who, LEASE, nonce, limit, lists, others)
    return Reserved.read(store.run(call))


def hold(
    store: Store, *messages: bytes, step: int = 0, who: str = "me", nonce: str = "1"
) -> list[str]:
    """Push messages to an empty queue, lease them all, and return their fields."""
    push(store, *messages, step=step)
    reserved = reserve(store, nonce, len(messages), who=who)
    assert [message for _, message, _ in reserved.messages] == list(messages)
    store.client.delete(store.keys.queue(QUEUE).wake)
    return [f"{nonce}:{place}" for place in range(1, len(messages) + 1)]


def bodies(reserved: Reserved) -> list[bytes]:
    """Return the messages alone."""
    return [message for _, message, _ in reserved.messages]


def counts(message: bytes, text: bytes) -> dict[bytes, bytes]:
    """Return what the hash of deliveries keeps for one message."""
    return {hashlib.sha1(message, usedforsecurity=False).hexdigest().encode(): text}
