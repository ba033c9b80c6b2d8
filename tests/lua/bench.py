"""A store under test, and entries to store in it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias
from urllib.parse import quote

import pytest

from celery_delayq.model.envelope import Due, Entry, Record, entry_id, head_of, task_field
from celery_delayq.model.publish_outcome import Put
from celery_delayq.model.script_values import PAUSED_OFFSET_MS, StatusCode
from celery_delayq.settings import Limits
from celery_delayq.store.keys import Keys, Layout
from celery_delayq.store.leases import AcquireReply, Reclaimed, WhenDue
from celery_delayq.store.repair import StockMessage
from celery_delayq.store.scripting.calls import Call
from celery_delayq.store.scripting.replies import EntriesReply, Promoted
from celery_delayq.store.store import Store
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.support import TIMEOUT
from tests.support.keyspace import snapshot
from tests.support.lease_time import lease_now, pass_time, relative
from tests.support.leases import Retried, ack, replace

QUEUE = "q"

#: Seconds. Ten minutes, so that the run time of a test does not matter.
LEASE = 600.0
#: A due in the far future, ms.
FAR = 4_000_000_000_000

DEFAULT = Layout()

#: The layout as the registry stores it.
LAYOUT = DEFAULT.text.encode()
REGISTERED = {"delayq:queues": {b"q": LAYOUT}}

#: Calls of scripts by their names, each with a reply. The contract test of headers and calls uses
#: ``SCRIPT_CALLS`` of the modules here.
Calls: TypeAlias = dict[str, tuple[Callable[[Store], object], Any]]

#: A record and an entry for these calls.
DATA = Record(3, "message_id", "task", b"{}").pack()
ENTRY = Entry("id", Due(5), 3, DATA)

STATE_KEYS = Keys().queue(QUEUE).state

#: Messages that break if a script parses or changes them.
JUNK = {
    "binary": bytes(range(256)),
    "empty": b"",
    "newlines": b"\n\nsecond line\n",
    "begins-with-the-mark": b"!\nis not delivered alone",
    "looks-held": b"3!\n{}",
    "large": bytes(range(256)) * 4096,
}

any_bytes = pytest.mark.parametrize("message", JUNK.values(), ids=JUNK)


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
    """Return an entry whose message contains its id."""
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
    lane: str = "",
    expires: int = 0,
) -> Entry:
    """Return an entry with a label; *unique* is a scope (``s`` or ``d``) and a key.

    Without a *policy* the entry replaces the owner of the key. *lane* is the lane of its limit;
    *expires* is in ms since 1970, 0 for never.
    """
    message_id = message_id or f"n-{quote(id)}"
    label = f"{quote(entry_id(id))} {message_id} {skip_after} {unique}"
    mark = f', "limit": "{lane} {expires}"' if lane else ""
    body = b'{"properties": {"delayq": {"label": "%b"%b}}}' % (label.encode(), mark.encode())
    record = Record(priority, message_id, task, body)
    if unique != "-":
        policy = policy or "r 0 0"
    return Entry(entry_id(id), Due(due_ms, relative), priority, record.pack(), policy)


def large(what: Entry, size: int) -> Entry:
    """Return an entry with a label and *size* more bytes in its message, as publish makes it."""
    record = Record.unpack(what.data)
    head, task = head_of(record.message), task_field(record.task).encode()
    body = b'%b, "task": "%b"}}, "body": "%b"}' % (head, task, b"x" * size)
    return what._replace(data=record._replace(message=body).pack())


def retried(what: Entry, message_id: str, due_ms: int = FAR) -> Entry:
    """Return the retry of an entry with a label."""
    old = Record.unpack(what.data)
    message = old.message.replace(old.message_id.encode(), message_id.encode())
    data = old._replace(message_id=message_id, message=message).pack()
    policy = what.policy and what.policy[:-1] + "1"
    return what._replace(due=Due(due_ms), data=data, policy=policy)


def taken_by(id: str, message_id: str | None = None, *, since: int | str = "") -> bytes:
    """Return the stored value of a unique key that a message owns."""
    return f"{since}={id}\0{message_id or f'n-{id}'}".encode()


def message_of(what: Entry) -> bytes:
    """Return the message's bytes in the ready list."""
    return Record.unpack(what.data).message


def member(task: str, due_ms: int, name: str) -> bytes:
    """Return the member of an entry in the index by task."""
    return f"{task_field(task)}\0{due_ms:015d}\0{name}".encode()


def as_scheduled(*entries: Entry, **names: Entry) -> dict[str, Any]:
    """Return the keys that have entries, under their ids or, by keyword, under other names."""
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


def bodies(acquired: AcquireReply) -> list[bytes]:
    """Return only the messages."""
    return [message for _, message, _ in acquired.messages]


def counts(message: bytes, text: bytes) -> dict[bytes, bytes]:
    """Return the hash of deliveries for one message."""
    return {hashlib.sha1(message, usedforsecurity=False).hexdigest().encode(): text}


class Bench(Store):
    """A store whose queue ``q`` a test brings into each state; process ``me`` leases messages."""

    # -- publish and promote

    def put(self, *entries: Entry, queue: str = QUEUE) -> list[Put]:
        """Publish in one call; return the outcome of each entry."""
        call = self.schedule_call(queue)
        for each in entries:
            call.add(each)
        return EntriesReply.read(self.run(call)).puts

    def states(self, *entries: Entry) -> list[str]:
        """Publish in one call; return the state of each entry."""
        return [each.state for each in self.put(*entries)]

    def push(self, *messages: bytes, step: int = 0, queue: str = QUEUE) -> None:
        """Make messages ready; the first one runs first."""
        call = self.ready_call(queue)
        for message in messages:
            call.add(step, message)
        self.run(call)

    def become_due(self, name: str, due_ms: int = 1) -> None:
        """Move the due of an entry to the past, as after a period without a dispatcher."""
        key, field = self.keys.queue(QUEUE), name.encode()
        with self.client.pipeline(transaction=False) as pipe:
            pipe.hget(key.entries, field)
            pipe.zscore(key.due, field)
            data, score = pipe.execute()
            task = Record.unpack(data or b"").task
            before = member(task, int(score or 0) % PAUSED_OFFSET_MS, name)
            pipe.zadd(key.due, {field: due_ms})
            pipe.zrem(key.tasks, before)
            pipe.zrem(key.paused_due, before)
            pipe.zadd(key.tasks, {member(task, due_ms, name): 0})
            pipe.zadd("delayq:next_due", {"q": due_ms}, lt=True)
            pipe.execute()

    def overdue(self, *ids: str, due_ms: int = 1, task: str = "tasks.t") -> None:
        """Publish due entries, each one millisecond after the earlier one."""
        for n, id in enumerate(ids):
            self.put(labelled(id, task=task))
            self.become_due(id, due_ms + n)

    def promote(
        self, queue: str = QUEUE, layout: Layout = DEFAULT, limit: int = 100, **how: Any
    ) -> Promoted:
        return super().promote(queue, layout, limit, **how)

    def promote_soon(self) -> None:
        """Promote entries that become due within a moment."""
        while not self.promote().moved:
            pass

    def make_ready(self, *entries: Entry, due_ms: int = 1) -> None:
        """Publish entries for later, and promote them at their due."""
        for each in entries:
            before = set(self.client.hkeys("{q}:entries"))
            self.put(each._replace(due=Due(FAR)))
            [name] = set(self.client.hkeys("{q}:entries")) - before
            self.become_due(name.decode(), due_ms)
            assert self.promote().moved == 1
        self.client.delete("{q}:wake")

    def lease(self, *entries: Entry) -> list[str]:
        """Make entries ready and lease them; return their fields."""
        self.make_ready(*entries)
        return [field for field, _, _ in self.acquire().messages]

    # -- manage

    def cancel(self, *ids: str, if_due: int | None = None) -> list[StatusCode]:
        return self.control.cancel(QUEUE, DEFAULT, ids, if_due=if_due)

    def run_now(self, *ids: str, if_due: int | None = None) -> list[StatusCode]:
        return self.control.run_now(QUEUE, DEFAULT, ids, if_due=if_due)

    def pause(self, *, queue: str | None = None, task: str | None = "tasks.t") -> bool:
        return self.control.pause([], queue=queue, task=None if queue else task)

    def resume(self, *, queue: str | None = None, task: str | None = "tasks.t") -> bool:
        return self.control.pause([QUEUE], queue=queue, task=None if queue else task, resume=True)

    def pause_due(self, *names: str, due_ms: int = 1, task: str = "tasks.t") -> None:
        """Pause a task, and let its entries become due."""
        self.pause(task=task)
        for name in names:
            self.become_due(name, due_ms)
        self.promote(limit=1000)

    # -- lease and settle

    def acquire(
        self,
        number: str = "1",
        limit: int = 10,
        *,
        who: str = "me",
        lists: int = 4,
        others: int = 0,
        queue: str = QUEUE,
        reports: bool = False,
        scarce: int = 10,
        has_limits: bool = False,
    ) -> AcquireReply:
        """Lease messages by a request; with *reports* also messages that do not run.

        If the reply tells of limits, the request is made again by the variant for them. With
        *has_limits* it is made by that variant at once.
        """
        args = queue, who, LEASE, number, limit, lists, others, reports, scarce
        reply = AcquireReply.read(self.run(self.leases.acquire_call(*args, has_limits)))
        if reply.has_limits and not has_limits:
            reply = AcquireReply.read(self.run(self.leases.acquire_call(*args, has_limits=True)))
        return reply._replace(others=False, has_limits=False)

    def define_limit(
        self,
        name: str = "api",
        *,
        interval_us: float = 0,
        burst: int = 1,
        concurrency: int = 0,
        fair: bool = False,
        by: str = "c",
    ) -> None:
        """Define a limit as the code does, or as people do (*by* ``o``)."""
        text = f"{interval_us} {burst} {concurrency} {int(fair)}"
        self.client.hset(self.keys.limits, by + name, text)

    def hold(
        self, *messages: bytes, step: int = 0, who: str = "me", number: str = "1"
    ) -> list[str]:
        """Push messages to an empty queue, lease them all, and return their fields."""
        self.push(*messages, step=step)
        acquired = self.acquire(number, len(messages), who=who)
        assert bodies(acquired) == list(messages)
        self.client.delete("{q}:wake")
        return [f"{number}:{place}" for place in range(1, len(messages) + 1)]

    def quarantine(self, message: bytes, step: int = 0) -> None:
        """Quarantine a message."""
        self.client.lpush("{q}:quarantined", b"%d\n" % step + message)
        self.delivered(message, b"5 0 0")

    def delivered(self, message: bytes, text: bytes) -> None:
        """Set how often a message was reclaimed, crashed its process and was requeued."""
        self.client.hset("{q}:deliveries", mapping=counts(message, text))

    def ack(self, *fields: str) -> int:
        return ack(self, QUEUE, "me", fields)

    def requeue(self, *fields: str, **how: Any) -> tuple[int, int]:
        return self.leases.requeue(QUEUE, "me", fields, **how)

    def replace(
        self,
        what: Entry,
        *,
        field: str = "1:1",
        who: str = "me",
        to: str = QUEUE,
        when_due: WhenDue = "push",
    ) -> Retried:
        """Replace a leased message by an entry."""
        return replace(self, to, what, QUEUE, who, field, when_due=when_due)

    def reclaim_expired(
        self, *, who: str = "me", limit: int = 100, max_deliveries: int = 5
    ) -> Reclaimed:
        return self.leases.reclaim_expired(QUEUE, DEFAULT, who, limit, max_deliveries)

    def pass_time(self, seconds: float = LEASE + 60) -> None:
        """Let lease time pass: by default until all leases have ended."""
        pass_time(self.client, seconds)

    # -- give back

    def read(self, name: str, message: bytes = b"{}") -> StockMessage:
        """Return an entry as stored, with the message that replaces it on stock."""
        [(_, score, record)] = self.repair.scheduled(QUEUE, [name])
        assert score is not None
        assert record is not None
        return StockMessage(name, score, record, message)

    def release(self, *some: StockMessage, token: str | None = None) -> str:
        """Give entries back to stock workers, and return the status code of each."""
        return "".join(self.repair.give_back(QUEUE, DEFAULT, some, token))

    # -- contents of the keys

    def state(self) -> dict[str, Any]:
        """Return all keys but request numbers, with the ends of leases in minutes from now.

        A request number stays until the lease is reclaimed. It has tests of its own.
        """
        found = relative(snapshot(self.client), lease_now(self.client))
        return {key: value for key, value in found.items() if not key.endswith(":request_numbers")}

    def dead_messages(self) -> list[bytes]:
        """Return the messages of all dead letters."""
        return [each.message for each in self.dead_letters.all(QUEUE)]

    def ready_index_due(self, name: str) -> int:
        """Return the due in the ready index."""
        return int((self.client.hget("{q}:ready_index", name) or b"").split(b" ")[1])

    def set_ready_index_due(self, name: str, due_ms: int) -> None:
        """Set the due of a ready message."""
        message_id, _, rest = (self.client.hget("{q}:ready_index", name) or b"").split(b" ", 2)
        self.client.hset("{q}:ready_index", name, b"%b %d %b" % (message_id, due_ms, rest))

    @contextmanager
    def wakeups(self) -> Iterator[list[tuple[int, str]]]:
        """Collect the wake-ups of dispatchers: microseconds to wait, and queue."""
        found: list[tuple[int, str]] = []
        with self.client.pubsub(ignore_subscribe_messages=True) as ears:
            ears.subscribe(self.keys.wake)
            ears.get_message(timeout=TIMEOUT)
            yield found
            self.client.publish(self.keys.wake, "0 end")
            for heard in ears.listen():
                wait, _, queue = heard["data"].decode().partition(" ")
                if queue == "end":
                    return
                found.append((int(wait), queue))

    # -- obstacles

    def fill(self) -> None:
        """Leave the server no free memory."""
        self.client.config_set("maxmemory-policy", "noeviction")
        self.client.config_set("maxmemory", 1)

    def make_room(self) -> None:
        """Undo :meth:`fill`."""
        self.client.config_set("maxmemory", 0)


class Repeating(Bench):
    """A store that loses the reply of each call, and repeats the call."""

    between: Callable[[], object]

    def run(self, call: Call) -> Any:
        """Make a call twice, and return the second reply."""
        super().run(call)
        self.between()
        return super().run(call)


def repeating(store: Store, between: Callable[[], object] = lambda: None) -> Repeating:
    """Return a store that makes each call twice and calls *between* after the first time."""
    other = Repeating(store.client, store.keys, store.layout, store.limits)
    other.between = between
    return other


class Recording(Bench):
    """A store that keeps its calls and their replies."""

    def __init__(self, store: Store) -> None:
        super().__init__(store.client, store.keys, store.layout, store.limits)
        self.calls: list[Call] = []
        self.replies: list[Any] = []

    def run(self, call: Call) -> Any:
        """Make a call."""
        self.calls.append(call)
        self.replies.append(super().run(call))
        return self.replies[-1]


def bench(server: RedisUnderTest, **limits: Any) -> Bench:
    """Return a store with limits. A dispatcher has looked just now, so lease time goes on."""
    store = Bench(server.client, Keys(), DEFAULT, lambda _queue: Limits(**limits))
    store.next_queue()
    return store


def override_limit(store: Store, name: str, definition: str) -> None:
    """Set a limit as people do; unset it with ``""``."""
    before = store.task_limits.stored(name)
    assert store.task_limits.change(name, before, before._replace(override=definition))
