"""A store on an empty Redis, and easy ways to make entries and to hold messages."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

from celery_delayq.model.envelope import Due, Entry, Record, entry_id, task_field
from celery_delayq.model.lookup import PAUSED_OFFSET
from celery_delayq.model.publish_outcome import Put
from celery_delayq.store.keys import Keys, Layout
from celery_delayq.store.leases import Reserved
from celery_delayq.store.repair import Release, RepairStore
from celery_delayq.store.schedule import Store
from celery_delayq.store.scripting.calls import Call
from celery_delayq.store.scripting.replies import Puts
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.support.keyspace import snapshot
from tests.support.model_clock import lease_now, relative

QUEUE = "q"

#: Seconds: ten minutes, so that no time that a test takes counts.
LEASE = 600.0

#: A due that does not come, ms.
FAR = 4_000_000_000_000

#: What the registry keeps of a queue.
LAYOUT = Layout().text.encode()

#: The keys with which scripts about entries begin.
STATE_KEYS = Keys().queue(QUEUE).state

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


def pytest_itemcollected(item: pytest.Item) -> None:
    """Run all of these on each server: scripts depend on it."""
    item.add_marker(pytest.mark.each_server)


@pytest.fixture
def store(delayq_redis: RedisUnderTest) -> Store:
    return Store(delayq_redis.client, Keys(), Layout())


@pytest.fixture
def watched(store: Store) -> None:
    """A dispatcher has looked just now, so lease time passes."""
    store.next_queue()


def entry(
    id: str = "a",
    due_ms: int = 0,
    *,
    relative: bool = False,
    priority: int = 0,
    message_id: str | None = None,
    task: str = "tasks.t",
    message: bytes | None = None,
) -> Entry:
    """Return an entry whose message names its id."""
    body = message if message is not None else b'{"id": "%s"}' % id.encode()
    record = Record(priority, message_id or f"n-{id}", task, body)
    return Entry(id, Due(due_ms, relative), priority, record.pack())


def labelled(
    id: str = "a",
    due_ms: int = FAR,
    *,
    message_id: str | None = None,
    unique: str = "-",
    policy: str = "",
    skip_after: int = 0,
    relative: bool = False,
    priority: int = 0,
    task: str = "tasks.t",
) -> Entry:
    """Return an entry with a label; *unique* is a key behind the dead letter of its scope.

    Without a *policy* it replaces what has that key.
    """
    message_id = message_id or f"n-{quote(id)}"
    label = f"{quote(entry_id(id))} {message_id} {skip_after} {unique}"
    body = b'{"properties": {"delayq": {"label": "%b"}}}' % label.encode()
    record = Record(priority, message_id, task, body)
    if unique != "-":
        policy = policy or "r 0 0"
    return Entry(entry_id(id), Due(due_ms, relative), priority, record.pack(), policy)


def retried(what: Entry, message_id: str, due_ms: int = FAR) -> Entry:
    """Return the retry of an entry with a label."""
    old = Record.unpack(what.data)
    message = old.message.replace(old.message_id.encode(), message_id.encode())
    data = old._replace(message_id=message_id, message=message).pack()
    policy = what.policy and what.policy[:-1] + "1"
    return what._replace(due=Due(due_ms), data=data, policy=policy)


def taken_by(id: str, message_id: str | None = None, *, since: int | str = "") -> bytes:
    """Return what stands under a unique key that a message has."""
    return f"{since}={id}\0{message_id or f'n-{id}'}".encode()


def message_of(what: Entry) -> bytes:
    """Return the bytes that go to the ready list."""
    return Record.unpack(what.data).message


def put(store: Store, *entries: Entry, queue: str = QUEUE) -> list[Put]:
    """Publish in one call, and tell what became of each."""
    call = store.puts(queue)
    for each in entries:
        call.add(each)
    return Puts.read(store.run(call)).puts


def states(store: Store, *entries: Entry) -> list[str]:
    """Publish in one call, and tell only in which state each is."""
    return [each.state for each in put(store, *entries)]


def become_due(store: Store, name: str, due_ms: int = 1) -> None:
    """Let the moment of an entry have passed, as after a time without any dispatcher."""
    key, field = store.keys.queue(QUEUE), name.encode()
    with store.client.pipeline(transaction=False) as pipe:
        pipe.hget(key.entries, field)
        pipe.zscore(key.due, field)
        data, score = pipe.execute()
        task = Record.unpack(data or b"").task
        before = member(task, int(score or 0) % PAUSED_OFFSET, name)
        pipe.zadd(key.due, {field: due_ms})
        pipe.zrem(key.tasks, before)
        pipe.zrem(key.paused_due, before)
        pipe.zadd(key.tasks, {member(task, due_ms, name): 0})
        pipe.zadd("delayq:next_due", {"q": due_ms}, lt=True)
        pipe.execute()


def member(task: str, due_ms: int, name: str) -> bytes:
    """Return the member of the index by task that belongs to an entry."""
    return f"{task_field(task)}\0{due_ms:015d}\0{name}".encode()


def make_ready(store: Store, *entries: Entry, due_ms: int = 1) -> None:
    """Publish entries for later, and promote them when they are due."""
    for each in entries:
        before = set(store.client.hkeys("{q}:entries"))
        put(store, each._replace(due=Due(FAR)))
        [name] = set(store.client.hkeys("{q}:entries")) - before
        become_due(store, name.decode(), due_ms)
        assert store.promote(QUEUE, Layout(), 100).moved == 1
    store.client.delete("{q}:wake")


def as_scheduled(*entries: Entry, **names: Entry) -> dict[str, Any]:
    """Return the keys that hold entries, under their ids or, by keyword, under other names."""
    every = {each.id: each for each in entries} | names
    first = min(each.due.ms for each in every.values())
    return {
        "delayq:next_due": {b"q": first},
        "delayq:queues": {b"q": LAYOUT},
        "{q}:due": {name.encode(): each.due.ms for name, each in every.items()},
        "{q}:entries": {name.encode(): each.data for name, each in every.items()},
        "{q}:tasks": {
            member(Record.unpack(each.data).task, each.due.ms, name): 0
            for name, each in every.items()
        },
    }


class Repeating(Store):
    """A store that loses the reply of each call, and makes it again.

    *between* is done after the first time.
    """

    between: Callable[[], object] = staticmethod(lambda: None)

    def run(self, call: Call) -> Any:
        """Make a call twice, and return what the second one got."""
        super().run(call)
        self.between()
        return super().run(call)


def repeating(store: Store, between: Callable[[], object] | None = None) -> Repeating:
    """Return a store on the same server that makes each call twice."""
    other = Repeating(store.client, store.keys, store.layout)
    if between is not None:
        other.between = between
    return other


def fill(store: Store) -> None:
    """Leave the server no memory for anything new."""
    store.client.config_set("maxmemory-policy", "noeviction")
    store.client.config_set("maxmemory", 1)


def state(store: Store) -> dict[str, Any]:
    """Return the whole key space but the message ids, ends of leases in minutes from now.

    A message id stays until the lease is reclaimed; its own tests look at it.
    """
    found = relative(snapshot(store.client), lease_now(store.client))
    return {key: value for key, value in found.items() if not key.endswith(":request_numbers")}


def read(store: Store, name: str, message: bytes = b"{}") -> Release:
    """Return an entry as it is, and what is to take its place when it goes back to stock."""
    [(_, score, record)] = RepairStore(store).scheduled(QUEUE, [name])
    assert score is not None
    assert record is not None
    return Release(name, score, record, message)


def release(store: Store, *some: Release, token: str | None = None) -> str:
    """Give entries back to stock workers, and tell what became of each."""
    return "".join(RepairStore(store).give_back(QUEUE, Layout(), some, token))


def push(store: Store, *messages: bytes, step: int = 0, queue: str = QUEUE) -> None:
    """Make messages ready, the first to run first."""
    call = store.ready_call(queue)
    for message in messages:
        call.add(step, message)
    store.run(call)


def reserve(
    store: Store,
    message_id: str = "1",
    limit: int = 10,
    *,
    who: str = "me",
    lists: int = 4,
    others: int = 0,
    queue: str = QUEUE,
) -> Reserved:
    """Lease messages."""
    call = store.leases.acquire_call(queue, who, LEASE, message_id, limit, lists, others)
    return Reserved.read(store.run(call))


def hold(
    store: Store, *messages: bytes, step: int = 0, who: str = "me", message_id: str = "1"
) -> list[str]:
    """Push messages to an empty queue, lease them all, and return their fields."""
    push(store, *messages, step=step)
    reserved = reserve(store, message_id, len(messages), who=who)
    assert [message for _, message, _ in reserved.messages] == list(messages)
    store.client.delete(store.keys.queue(QUEUE).wake)
    return [f"{message_id}:{place}" for place in range(1, len(messages) + 1)]


def bodies(reserved: Reserved) -> list[bytes]:
    """Return the messages alone."""
    return [message for _, message, _ in reserved.messages]


def counts(message: bytes, text: bytes) -> dict[bytes, bytes]:
    """Return what the hash of deliveries keeps for one message."""
    return {hashlib.sha1(message, usedforsecurity=False).hexdigest().encode(): text}
