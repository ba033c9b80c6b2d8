"""Declares, checks and removes the exchanges and queues of delays in RabbitMQ.

An *item* is an exchange, a queue or a binding of this package. Delayed tasks are published to an
*entry exchange*. Due tasks for an exchange of the app leave the delays by the *exit queue* of that
exchange. :mod:`~celery_delayq.transport.amqp.topology` has a picture of all items.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from amqp.exceptions import ChannelError, NotFound
from celery import Celery

from celery_delayq.admin.rabbitmq.broker import open_channel
from celery_delayq.errors import BrokerNotEmpty, DelayQError, NotAllowed
from celery_delayq.transport.amqp.channel import Channel
from celery_delayq.transport.amqp.dead_letters import View
from celery_delayq.transport.amqp.declarer import Declarer
from celery_delayq.transport.amqp.sizes import ready_messages
from celery_delayq.transport.amqp.topology import CLOSED_TYPE, OPEN_TYPE, Binding, Item, QueueItem

#: Seconds between two checks whether all queues are empty.
_POLL_SECONDS = 1.0


class State(str, Enum):
    """The state of an exchange or queue of this package."""

    DECLARED = "declared"
    MISSING = "missing"
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True)
class Checked:
    """An exchange or queue of this package, and its state.

    Attributes
    ----------
    reason : str
        RabbitMQ's error if the state is DIFFERENT, otherwise "".
    is_fault : bool
        Whether delayed tasks fail because of the state. MISSING is a fault only with
        ``declare=False``: otherwise tasks declare the exchanges and queues that they need.
    """

    kind: str
    name: str
    state: State
    reason: str
    is_fault: bool


def definitions(app: Celery, exchanges: Iterable[str] = ()) -> dict[str, Any]:
    """Return all items in the format of ``rabbitmqctl import_definitions``."""
    with open_channel(app) as channel:
        vhost = channel.connection.virtual_host
        found: dict[str, list[dict[str, Any]]] = {"exchanges": [], "queues": [], "bindings": []}
        lasting = {"vhost": vhost, "durable": True, "auto_delete": False}
        for item in _items(app, channel, exchanges):
            match item:
                case QueueItem(name, arguments):
                    found["queues"].append({"name": name, **lasting, "arguments": dict(arguments)})
                case Binding(source, target, arguments):
                    kind = "queue" if isinstance(target, QueueItem) else "exchange"
                    found["bindings"].append(
                        {
                            "source": source,
                            "vhost": vhost,
                            "destination": target.name,
                            "destination_type": kind,
                            "routing_key": "",
                            "arguments": dict(arguments),
                        }
                    )
                case _:
                    found["exchanges"].append(
                        {
                            "name": item.name,
                            **lasting,
                            "type": item.type,
                            "internal": False,
                            "arguments": dict(item.arguments),
                        }
                    )
        return found


def apply(app: Celery, exchanges: Iterable[str] = ()) -> int:
    """Declare all items and the bindings to the app's queues; return the number of items.

    Parameters
    ----------
    exchanges : Iterable[str]
        More exchanges to which delayed tasks are published, besides the exchanges of the app's
        queues.

    Raises
    ------
    ConfigError, NotAllowed
        An item exists with other arguments, or the account lacks a right.
    """
    with open_channel(app) as channel:
        declarer = Declarer(channel.connection, channel.topology)
        for name in channel.topology.entries():
            if _is_closed(channel, name):
                channel.exchange_delete(name)
        for queue in app.amqp.queues.values():
            if not queue.no_declare:
                queue(channel).declare()
        items = [*_items(app, channel, exchanges)]
        declarer.declare(items)
        for name in ready_messages(channel.connection, app.amqp.queues):
            declarer.bind(name)
        channel.dead_letters.seed()
        return len(items)


def check(app: Celery, exchanges: Iterable[str] = ()) -> list[Checked]:
    """Compare exchanges and queues with their definitions. RabbitMQ does not show bindings."""
    with open_channel(app) as channel:
        connection, topology = channel.connection, channel.topology
        passive = Declarer(connection, topology, declare=False)
        active = Declarer(connection, topology)
        found = []
        for item in _items(app, channel, exchanges):
            if not isinstance(item, Binding):
                state, reason = _compared(passive, active, item)
                fault = {State.MISSING: not channel.settings.declare, State.DIFFERENT: True}
                kind = "queue" if isinstance(item, QueueItem) else "exchange"
                found.append(Checked(kind, item.name, state, reason, fault.get(state, False)))
        return found


def delete(app: Celery, settle: float = 190.0) -> Iterator[float]:
    """Remove all exchanges and queues except exit queues, if no task waits.

    First the entry exchanges are closed: until :func:`apply`, publishing with a delay raises an
    error. Exit queues stay, because their tasks wait until a queue is bound to their exchange, and
    clients cannot see the number of these tasks.

    May be interrupted and repeated. Stop the workers first: a dead letter that a worker adds in the
    milliseconds between the last check and the removal of the stream is lost.

    Parameters
    ----------
    settle : float
        Seconds for which all queues must be empty. RabbitMQ may have a message in a retry interval,
        up to three minutes, in which no queue counts the message.

    Yields
    ------
    float
        The remaining seconds, once per second.

    Raises
    ------
    BrokerNotEmpty
        A task waits or is unroutable, or there are dead letters. The entry exchanges stay closed.
    """
    with open_channel(app) as channel:
        topology = channel.topology
        items = [item for item in topology.all() if not isinstance(item, Binding)]
        entries = topology.entries()
        for name in entries:
            if not _is_closed(channel, name):
                channel.exchange_delete(name)
                channel.exchange_declare(name, CLOSED_TYPE, durable=True, auto_delete=False)
        end = time.monotonic() + settle
        checked_view: View | None = None  # of the streams of dead letters
        while True:
            _raise_if_tasks_remain(channel)
            view = channel.dead_letters.view()
            if view == checked_view and time.monotonic() >= end:
                break
            if view != checked_view:
                _raise_if_dead_letters(channel, view)
            checked_view = view
            remaining_seconds = max(end - time.monotonic(), 0)
            if remaining_seconds:
                yield remaining_seconds
            time.sleep(min(remaining_seconds, _POLL_SECONDS))
        # The stream ``settled`` first. Its offsets would mark dead letters of a new stream.
        for name in (topology.settled, topology.dead_letters):
            channel.queue_delete(name)
        for item in reversed(items):
            if not isinstance(item, QueueItem):
                if item.name not in entries:
                    channel.exchange_delete(item.name)
            elif item.name not in (topology.settled, topology.dead_letters):
                channel.queue_delete(item.name)
        if topology.dead_letters in ready_messages(channel.connection, [topology.dead_letters]):
            raise _not_empty("dead letters that came meanwhile, and their streams")
        for name in entries:
            channel.exchange_delete(name)


def _items(app: Celery, channel: Channel, exchanges: Iterable[str]) -> Iterator[Item]:
    """Yield all items, including the exit queues of the app's exchanges and of *exchanges*."""
    yield from channel.topology.all()
    of_app = {queue.exchange.name for queue in app.amqp.queues.values() if _has_exit(queue)}
    for exchange in sorted({*of_app, *exchanges}):
        yield from channel.topology.at_exchange(exchange)


def _has_exit(queue: Any) -> bool:
    """Return whether tasks for a queue go to its exchange. Celery publishes to others by name."""
    return bool(queue.exchange.name) and queue.exchange.type not in ("direct", "fanout")


def _is_closed(channel: Channel, entry: str) -> bool:
    """Return whether :func:`delete` has closed an entry exchange."""
    trial = channel.connection.channel()
    try:
        trial.exchange_declare(entry, OPEN_TYPE, passive=True)
        trial.exchange_declare(entry, OPEN_TYPE, durable=True, auto_delete=False)
    except NotFound:
        return False
    except ChannelError as exc:
        return f"'{CLOSED_TYPE}'" in exc.reply_text
    finally:
        if trial.is_open:
            trial.close()
    return False


def _compared(passive: Declarer, active: Declarer, item: Item) -> tuple[State, str]:
    """Return the state of an item, and RabbitMQ's error if it differs. Creates no item."""
    try:
        passive.declare([item])
    except NotAllowed as exc:
        return State.DIFFERENT, str(exc)
    except DelayQError:
        return State.MISSING, ""
    try:
        active.declare([item])  # the item exists: RabbitMQ only compares the arguments
    except DelayQError as exc:
        return State.DIFFERENT, str(exc).partition(";")[0]
    return State.DECLARED, ""


def _raise_if_tasks_remain(channel: Channel) -> None:
    topology, connection = channel.topology, channel.connection
    counts = {
        name: sum(ready_messages(connection, queues).values())
        for name, queues in [
            ("scheduled", topology.delay_queues()),
            ("unroutable", [topology.unroutable]),
        ]
    }
    remaining = [f"{count:,} {name}" for name, count in counts.items() if count]
    if remaining:
        raise _not_empty(", ".join(remaining))


def _raise_if_dead_letters(channel: Channel, view: View) -> None:
    count = sum(1 for _ in channel.dead_letters.read(view))
    if count:
        raise _not_empty(f"{count:,} dead")


def _not_empty(what: str) -> BrokerNotEmpty:
    return BrokerNotEmpty(
        f"not removed, there are still {what}. Publishing with a delay is refused now. Repeat this "
        "when no task remains, or accept delayed tasks again by topology --apply"
    )
