"""Moves delayed tasks from Celery's native delay on RabbitMQ to this package, and back."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from celery import Celery
from celery.utils.quorum_queues import detect_quorum_queues
from kombu import Queue
from kombu.transport import native_delayed_delivery as native

from celery_delayq.admin.rabbitmq.broker import open_channel
from celery_delayq.admin.stock_migration import Moved
from celery_delayq.errors import InvalidETA, InvalidOption
from celery_delayq.model import envelope
from celery_delayq.model.envelope import Due, due_of_eta
from celery_delayq.transport.amqp import cascade
from celery_delayq.transport.amqp.channel import Channel
from celery_delayq.transport.amqp.frames import encoded
from celery_delayq.transport.amqp.messages import OWN_HEADER, Routed, is_task, own_of
from celery_delayq.transport.amqp.sizes import ready_messages

#: Messages that are published before each wait for RabbitMQ's confirms.
PUBLISH_BATCH = 200

#: The prefix that native delay adds to a routing key.
_DIGITS = re.compile(rf"^(?:[01]\.){{{native.MAX_NUMBER_OF_BITS_TO_USE}}}")


#: Returns the messages to publish in place of a message; an empty list if the message must stay.
Prepare = Callable[[Any], list[Routed]]


def from_native(app: Celery, *, dry_run: bool = False) -> Iterator[Moved]:
    """Take over the tasks in Celery's ``celery_delayed_*`` queues.

    The ``eta`` header is the due time. May be interrupted and repeated. A message is removed from
    its old queue after RabbitMQ has confirmed the new message. If the process is killed, tasks of
    one batch (:data:`PUBLISH_BATCH`) run twice.

    Yields
    ------
    Moved
        The same object after each batch, for a progress bar, and once before the first batch.
    """
    with open_channel(app) as channel:
        queues = [native.level_name(level) for level in reversed(range(native.MAX_LEVEL + 1))]
        # The highest level first: messages that move to a lower level meanwhile are found there.
        yield from _move_all(
            channel, queues, lambda message: _taken(app, channel, message), dry_run
        )


def to_native(app: Celery, *, dry_run: bool = False) -> Iterator[Moved]:
    """Give delayed tasks back in the form in which stock Celery publishes them.

    A task uses native delay if the app has a quorum queue and the task's exchange is a topic
    exchange. Any other task goes to its queue with an ETA. Switch all producers to the stock URL
    first. May be interrupted and repeated, as :func:`from_native`.

    Yields
    ------
    Moved
        The same object after each batch, for a progress bar, and once before the first batch.
    """
    with open_channel(app) as channel:
        delays = detect_quorum_queues(app, "amqp")[0]
        if delays and not dry_run:
            _declare_native(app, channel)
        yield from _move_all(
            channel,
            channel.topology.delay_queues()[::-1],
            lambda message: _given_back(app, message, delays=delays),
            dry_run,
        )


def _move_all(
    channel: Channel, queues: Sequence[str], prepare: Prepare, dry_run: bool
) -> Iterator[Moved]:
    """Move all messages of *queues*, one queue at a time."""
    moved = Moved(sum(ready_messages(channel.connection, queues).values()))
    yield moved
    if dry_run:
        moved.scheduled = moved.total
        yield moved
        return
    for queue in queues:
        yield from _move(channel, queue, moved, prepare)


def _move(channel: Channel, queue: str, moved: Moved, prepare: Prepare) -> Iterator[Moved]:
    """Move all messages of a queue."""
    if not ready_messages(channel.connection, [queue]).get(queue):
        return
    # RabbitMQ requeues the messages that must stay when this channel is closed.
    taken = channel.connection.channel()
    try:
        found = True
        while found:
            found = False
            sent: list[Routed] = []
            tags: list[int] = []
            while len(sent) < PUBLISH_BATCH and (message := taken.basic_get(queue)) is not None:
                found = True
                try:
                    copies = prepare(message)
                except (InvalidETA, InvalidOption):
                    copies = []
                sent += copies
                tags += [message.delivery_tag] * len(copies)
                moved.unmovable += not copies
            refused = {tags[place] for place in channel.send(sent)}
            for tag in {*tags} - refused:
                taken.basic_ack(tag)
            moved.scheduled += len({*tags} - refused)
            moved.unmovable += len(refused)
            yield moved
    finally:
        if taken.is_open:
            taken.close()


def _taken(app: Celery, channel: Channel, message: Any) -> list[Routed]:
    """Return this package's messages for a native message: one for each exchange or queue."""
    headers = message.properties.get("application_headers") or {}
    routing_key = _DIGITS.sub("", message.delivery_info["routing_key"])
    due = envelope.due_of({"headers": headers})
    targets = sorted(_targets(app, routing_key))
    if due is None or not targets or not is_task(message):
        return []
    return [channel.routed(message, exchange, key, due) for exchange, key in targets]


def _targets(app: Celery, routing_key: str) -> set[tuple[str, str]]:
    """Return the pairs of exchange and routing key to which native delay delivers a key.

    Queues of fanout exchanges are addressed by name.
    """
    found = set()
    for queue in app.amqp.queues.values():
        for exchange, pattern in _bindings(queue):
            if exchange.type == "direct" or not _matches(routing_key, pattern):
                continue
            by_name = exchange.type == "fanout"
            found.add(("", queue.name) if by_name else (exchange.name, routing_key))
    return found


def _bindings(queue: Queue) -> list[tuple[Any, str]]:
    if queue.exchange:
        return [(queue.exchange, queue.routing_key or "")]
    return [(each.exchange, each.routing_key or "") for each in queue.bindings]


def _matches(routing_key: str, pattern: str) -> bool:
    """Return whether a topic binding matches a routing key.

    Native delay adds ``#.`` before the pattern.
    """

    def match(words: Sequence[str], pattern: Sequence[str]) -> bool:
        if not pattern:
            return not words
        first, *rest = pattern
        if first == "#":
            return any(match(words[n:], rest) for n in range(len(words) + 1))
        return bool(words) and first in ("*", words[0]) and match(words[1:], rest)

    return match(routing_key.split("."), ["#", *pattern.split(".")])


def _given_back(app: Celery, message: Any, *, delays: bool) -> list[Routed]:
    """Return a message of this package in the form in which stock Celery publishes it."""
    old = message.properties.get("application_headers") or {}
    exchange, key = old.get(cascade.TARGET_HEADER), message.delivery_info["routing_key"]
    due: Due = due_of_eta(old.get(cascade.DUE_HEADER))
    if not is_task(message) or not isinstance(exchange, str):
        return []
    headers = cascade.original_headers(old)
    headers["eta"] = own_of(message).get("eta") or old[cascade.DUE_HEADER]
    headers.pop(OWN_HEADER, None)
    properties = {**message.properties, "application_headers": headers}
    stock = encoded(message.body, properties)
    seconds = math.ceil(due.ms / 1000 - time.time())
    if delays and seconds > 0:
        for queue in app.amqp.queues.values():
            for of_queue, pattern in _bindings(queue):
                by_name = exchange == "" and queue.name == key
                # Native delay does not support direct exchanges. With a fanout exchange it would
                # make copies.
                if of_queue.type == "topic" and (by_name or of_queue.name == exchange):
                    level = native.level_name(native.MAX_LEVEL)
                    routing_key = native.calculate_routing_key(seconds, pattern if by_name else key)
                    return [Routed(stock, level, routing_key)]
    return [Routed(stock, exchange, key)]


def _declare_native(app: Celery, channel: Channel) -> None:
    connection = channel.connection.client
    kind = app.conf.broker_native_delayed_delivery_queue_type
    native.declare_native_delayed_delivery_exchanges_and_queues(connection, kind)
    for queue in app.amqp.queues.values():
        queue(channel).declare()
        native.bind_queue_to_native_delayed_delivery_exchange(connection, queue)
