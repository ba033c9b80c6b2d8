"""In which store of the broker a periodic entry is: in that of its queue."""

from __future__ import annotations

from celery import Celery

from celery_delayq.periodic.definition import Definition
from celery_delayq.store.cluster.periodic import PeriodicShards, periodic_of
from celery_delayq.store.periodic import PeriodicStore, Writing
from celery_delayq.store.stores import Stores

#: The entries of a broker.
Entries = PeriodicStore | PeriodicShards


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
        return sorted(channel._lookup(getattr(exchange, "name", exchange), key))


def entries_of(app: Celery, stores: Stores) -> Entries:
    """Return the periodic entries of an app's broker."""

    def queue(writing: Writing) -> str:
        return queue_of(app, Definition.loads(writing.name, writing.record.partition("\n")[2]))

    return periodic_of(stores, queue)
