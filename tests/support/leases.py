"""Lease keepers without Redis, and leases without a keeper."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, cast

from celery_delayq.dispatch.lease_keeper import LeaseKeeper
from celery_delayq.model.delivery import split_leased
from celery_delayq.model.envelope import Entry, head_of
from celery_delayq.settings import Settings
from celery_delayq.store.leases import Acked, WhenDue
from celery_delayq.store.scripting.calls import Call
from celery_delayq.store.store import Store

#: Replies of ``leases/replace.lua``.
Retried = Literal["scheduled", "ready", "due", "gone", "duplicate", "superseded"]


class Message:
    """Stands for a message that was handed out."""


def keeper(
    claim: Callable[[str, float], bool] = lambda *_: True,
    name: Callable[[], str] = lambda: "me",
    store: Any = None,
    start: Callable[[Callable[[], None]], None] | None = lambda _: None,
    **settings: Any,
) -> LeaseKeeper:
    """Return a keeper. Without a *start* function the keeper runs its thread and needs a store."""
    options = Settings.from_options({"delayq": settings})
    more: Any = {} if start is None else {"start": start}
    return LeaseKeeper(store, claim, options, name, **more)


def take(one: LeaseKeeper, queue: str, number: int, *, alone: bool = False) -> list[str]:
    """Let *one* lease *number* messages that came with a request."""
    message_id = one.new_request_number(queue)
    fields = [f"{message_id}:{place}" for place in range(1, number + 1)]
    return one.note_leased(queue, message_id, fields, alone=alone)


def ack(store: Store, queue: str, worker_id: str, fields: Iterable[str]) -> int:
    """Acknowledge messages; return how many were leased."""
    known, left = 0, [*fields]
    has_permits = bool(store.client.exists(store.keys.permits))
    while left:
        runs = dict.fromkeys(left, b"")
        call = store.leases.ack_call(queue, worker_id, runs, has_permits)
        acked = Acked(*store.run(call))
        known, left = known + acked.known, left[acked.done :]
    return known


def replace(
    store: Store,
    queue: str,
    entry: Entry,
    message_queue: str,
    who: str,
    field: str,
    *,
    when_due: WhenDue,
) -> Retried:
    """Schedule an entry on *queue* in place of a message that is leased from *message_queue*."""
    call = replace_call(store, queue, entry, message_queue, who, field, when_due=when_due)
    return cast(Retried, store.run(call).decode())


def replace_call(
    store: Store,
    queue: str,
    entry: Entry,
    message_queue: str,
    who: str,
    field: str,
    *,
    when_due: WhenDue,
    run: bytes = b"",
) -> Call:
    """Return the call of :func:`replace`, with the head of the message that Redis has."""
    held = store.client.hget(store.keys.queue(message_queue).leased(who), field) or b""
    head = head_of(split_leased(held)[1])
    return store.leases.replace_call(
        queue, entry, message_queue, who, field, head=head, when_due=when_due, run=run
    )
