"""In which store of the broker a periodic entry is: in that of its queue."""

from __future__ import annotations

from collections.abc import Iterable

from celery import Celery

from celery_delayq.errors import NotSupported
from celery_delayq.periodic.definition import Definition
from celery_delayq.periodic.state import Periodic
from celery_delayq.store.cluster.periodic import PeriodicStores
from celery_delayq.store.periodic import PeriodicStore, Writing
from celery_delayq.store.schedule import Store
from celery_delayq.store.stores import Stores

#: The entries of a broker.
Entries = PeriodicStore | PeriodicStores


def queue_of(app: Celery, definition: Definition) -> str:
    """Return the queue to which the ticks of an entry go; of several, one."""
    options = {name: each for name, each in definition.options.items() if name != "expires"}
    route = app.amqp.router.route(options, definition.task, definition.args, definition.kwargs)
    queue = route.get("queue") or app.conf.task_default_queue
    return str(getattr(queue, "name", queue))


def queues_of(app: Celery, definition: Definition) -> list[str]:
    """Return all queues to which the ticks of an entry go, by the bindings that there are now."""
    options = {name: each for name, each in definition.options.items() if name != "expires"}
    route = app.amqp.router.route(options, definition.task, definition.args, definition.kwargs)
    queue, exchange, key = (route.get(name) for name in ("queue", "exchange", "routing_key"))
    own = getattr(queue, "exchange", None)
    # Celery sends to a queue of a direct exchange by its name.
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


def entries_of(app: Celery, stores: Stores) -> Entries:
    """Return the periodic entries of an app's broker."""

    def queue(writing: Writing) -> str:
        return queue_of(app, Definition.loads(writing.name, writing.record.partition("\n")[2]))

    return stores.only.periodic if stores.has_one else PeriodicStores(stores, queue)


def check_place(app: Celery, stores: Stores, entry: Periodic) -> None:
    """Refuse an entry whose ticks go to queues of several hash tags of a Redis Cluster.

    A tick is one step, in one tag.

    Raises
    ------
    NotSupported
        They do, by the bindings that there are now.
    """
    if stores.has_one:
        return
    check_queues(stores, queues_of(app, entry.definition))


def check_queues(stores: Stores, queues: Iterable[str], *store: Store) -> None:
    """Refuse queues of ticks that belong to several stores, or to another store than *store*.

    Raises
    ------
    NotSupported
        The queues belong to several stores.
    """
    if len({*store, *map(stores.of, queues)}) > 1:
        raise NotSupported(
            f"its queues {', '.join(sorted(queues))} are not all of one hash tag of the Redis "
            "Cluster: name one queue, or add an entry for each"
        )


def move(app: Celery, stores: Stores, store: Store, entry: Periodic, look: int) -> bool:
    """Move an entry to the store of its queue; return whether the entry moved.

    If the move is interrupted, both stores have the entry, and one of them fires it.

    Parameters
    ----------
    store : Store
        The store that has the entry.
    look : int
        When dispatchers look at the entry there (ms).
    """
    if stores.has_one:
        return False
    target = stores.of(queue_of(app, entry.definition))
    if target is not store:
        line = entry.state.line
        target.periodic.write([Writing(entry.name, "", entry.pack(), look)])  # unless it is there
        store.periodic.write([Writing(entry.name, line, "")])
    return target is not store
