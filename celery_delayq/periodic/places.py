"""Finds the store of a periodic entry: the store of its queue."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery import Celery

from celery_delayq.errors import NotSupported
from celery_delayq.periodic.definition import Definition
from celery_delayq.periodic.entries import Periodic
from celery_delayq.store.cluster.periodic import PeriodicStores
from celery_delayq.store.periodic import EntryWrite, PeriodicStore
from celery_delayq.store.store import Store
from celery_delayq.store.stores import Stores

#: The periodic entries of a broker.
Entries = PeriodicStore | PeriodicStores


def queue_of(app: Celery, definition: Definition) -> str:
    """Return the queue to which the ticks of an entry go; one of them if there are several."""
    queue = _route(app, definition).get("queue") or app.conf.task_default_queue
    return str(getattr(queue, "name", queue))


def queues_of(app: Celery, definition: Definition) -> list[str]:
    """Return all queues to which the ticks of an entry go, by the present bindings."""
    route = _route(app, definition)
    queue, exchange, key = (route.get(name) for name in ("queue", "exchange", "routing_key"))
    own = getattr(queue, "exchange", None)
    # Celery publishes to a queue with a direct exchange by the name of the queue.
    if not (exchange or key) and own is not None and own.type != "direct":
        exchange, key = own, queue.routing_key
    if not exchange:
        return [queue_of(app, definition)]
    with app.connection_for_write() as connection:
        channel = connection.default_channel
        if hasattr(exchange, "name"):
            exchange = exchange(channel)
            exchange.declare()
        queues: list[str] = channel.bound_queues(getattr(exchange, "name", exchange), key)
        return queues


def _route(app: Celery, definition: Definition) -> Any:
    options = {name: each for name, each in definition.options.items() if name != "expires"}
    return app.amqp.router.route(options, definition.task, definition.args, definition.kwargs)


def entries_of(app: Celery, stores: Stores) -> Entries:
    """Return the periodic entries of an app's broker."""

    def queue(writing: EntryWrite) -> str:
        return queue_of(app, Definition.loads(writing.name, writing.record.partition("\n")[2]))

    return stores.only.periodic if stores.has_one else PeriodicStores(stores, queue)


def check_place(app: Celery, stores: Stores, definition: Definition) -> None:
    """Refuse an entry whose ticks go to queues of several hash tags of a Redis Cluster.

    One transaction schedules a tick in all queues. A transaction can use only one hash tag.

    Raises
    ------
    NotSupported
        The queues belong to several stores, by the present bindings.
    """
    if not stores.has_one:
        check_queues(stores, queues_of(app, definition))


def check_queues(stores: Stores, queues: Iterable[str], *store: Store) -> None:
    """Refuse queues of several stores. With *store*, also refuse queues of another store.

    Raises
    ------
    NotSupported
        The queues belong to several stores, or not to *store*.
    """
    if len({*store, *map(stores.of, queues)}) > 1:
        raise NotSupported(
            f"its queues {', '.join(sorted(queues))} are not all of one hash tag of the Redis "
            "Cluster: name one queue, or add an entry for each"
        )


def move_to_own_store(
    app: Celery, stores: Stores, store: Store, entry: Periodic, look: int
) -> bool:
    """Move an entry to the store of its queue; return whether the entry moved.

    After an interrupted move, both stores have the entry. Only the new store fires it.

    Parameters
    ----------
    store : Store
        The store that has the entry now.
    look : int
        Time at which dispatchers look at the entry in the new store (ms).
    """
    if stores.has_one:
        return False
    target = stores.of(queue_of(app, entry.definition))
    if target is not store:
        line = entry.state.line
        target.periodic.write([EntryWrite(entry.name, "", entry.pack(), look)])  # unless it exists
        store.periodic.write([EntryWrite(entry.name, line, "")])
    return target is not store
