"""In which store of the broker a periodic entry is: in that of its queue."""

from __future__ import annotations

from celery import Celery

from celery_delayq.periodic.definition import Definition
from celery_delayq.store.cluster.periodic import PeriodicShards, periodic_of
from celery_delayq.store.periodic import PeriodicStore, Writing
from celery_delayq.store.shards import Shards

#: The entries of a broker.
Entries = PeriodicStore | PeriodicShards


def queue_of(app: Celery, definition: Definition) -> str:
    """Return the queue to which the ticks of an entry go; of several, one."""
    options = {name: each for name, each in definition.options.items() if name != "expires"}
    route = app.amqp.router.route(options, definition.task, definition.args, definition.kwargs)
    queue = route.get("queue") or app.conf.task_default_queue
    return str(getattr(queue, "name", queue))


def entries_of(app: Celery, shards: Shards) -> Entries:
    """Return the periodic entries of an app's broker."""

    def queue(writing: Writing) -> str:
        return queue_of(app, Definition.loads(writing.name, writing.record.partition("\n")[2]))

    return periodic_of(shards, queue)
