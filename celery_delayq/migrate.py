"""Move a running app from stock Celery to this package and back, without a drain."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from celery import Celery

from celery_delayq import message as envelope
from celery_delayq.errors import InvalidETA, RecordError
from celery_delayq.message import Due, Entry, Record
from celery_delayq.store import Store, layouts


@dataclass(slots=True)
class Moved:
    """How many messages went where so far; *left* stay where they are, for the reason logged."""

    total: int
    scheduled: int = 0
    ready: int = 0
    gone: int = 0
    left: int = 0

    @property
    def done(self) -> int:
        """Messages looked at."""
        return self.scheduled + self.ready + self.gone + self.left


def from_stock(app: Celery, *, dry_run: bool = False) -> Iterator[Moved]:
    """Take over what stock workers hold: all messages in kombu's ``unacked`` hash.

    A message with a future ETA goes to the schedule, any other to its ready list. Each moves in
    one step, so this may be interrupted and repeated. The stock workers must have stopped: what
    they hold in memory they would run too.

    Yields
    ------
    Moved
        The same object after each message, for a progress bar; once before the first.
    """
    with app.connection_for_write() as connection:
        channel = connection.default_channel
        for queue in app.amqp.queues.values():
            queue(channel).declare()  # so that kombu knows the types of the exchanges
        store: Store = channel.store
        unacked = store.keys.stock(channel.unacked_key)
        moved = Moved(total=store.held_count(unacked))
        yield moved
        for tag, data in store.held_messages(unacked):
            try:
                raw, exchange, routing_key = json.loads(data)
                envelope.check_envelope(raw)
                queues = sorted(channel._lookup(exchange, routing_key))
                due = envelope.due_of(raw) or Due(0)
            except (ValueError, TypeError, InvalidETA):
                queues = []
            if not queues:
                moved.left += 1
                yield moved
                continue
            step = channel.priority(channel._get_message_priority(raw, reverse=False))
            entry = _entry(raw, step, due)
            if dry_run:
                outcome = "scheduled" if due.relative or due.ms > store.now_ms() else "ready"
            else:
                # kombu keeps one message for all queues of a topic: the last step lets it go.
                *others, last = queues
                for other in others:
                    store.schedule(other, entry)
                outcome = store.adopt(last, entry, channel.held(tag))
            setattr(moved, outcome, getattr(moved, outcome) + 1)
            yield moved


def to_stock(app: Celery, *, dry_run: bool = False) -> Iterator[Moved]:
    """Give the schedule back: each entry goes to its ready list as a message with its ETA.

    Stock workers then hold it in memory until it is due. Workers of this package must have
    stopped: they would take it back into the schedule. May be interrupted and repeated.

    Yields
    ------
    Moved
        The same object after each entry, for a progress bar; once before the first.
    """
    with app.connection_for_write() as connection:
        store: Store = connection.default_channel.store
        queues = layouts(store.registry())
        moved = Moved(total=sum(store.scheduled(queue) for queue in queues))
        yield moved
        for queue, layout in queues.items():
            for id, data in store.entries(queue):
                try:
                    record = Record.unpack(data)
                    back = envelope.encode(envelope.with_eta(json.loads(record.message)))
                except (RecordError, ValueError, KeyError, TypeError):
                    moved.left += 1
                else:
                    released = dry_run or store.release(queue, layout, id, data, back)
                    moved.ready += released
                    moved.gone += not released
                yield moved


def _entry(raw: dict[str, Any], step: int, due: Due) -> Entry:
    """Return the entry of a task message, or of any other message that only goes to ready."""
    if envelope.due_of(raw) is not None:
        return Entry.of(raw, step, due)
    nonce = str(raw["properties"]["delivery_tag"])
    return Entry(nonce, due, step, Record(step, nonce, "", envelope.encode(raw)).pack())
