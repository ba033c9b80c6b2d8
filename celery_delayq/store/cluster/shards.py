"""The stores of a Redis Cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

from celery_delayq.errors import ConfigError
from celery_delayq.model.cluster_tags import DEFAULT_NUMBER, cluster_tags, slot_of, tag_of
from celery_delayq.settings import Limits
from celery_delayq.store.cluster.nodes import Nodes
from celery_delayq.store.keys import Keys, Layout
from celery_delayq.store.schedule import Store
from celery_delayq.store.scripting.client import Client


class Shards:
    """A store for each hash tag: to its queues what the store of a single Redis is to all queues.

    Each has its own next-due index, registry, lease time, pauses, history and counters.

    Parameters
    ----------
    nodes : Nodes
        The cluster.
    keys : Keys
        Names of keys on a single Redis, with the same prefix.
    layout : Layout
        How this connection lays out the ready lists of its queues.
    limits : Callable[[str], Limits]
        Returns the limits of a queue.
    number : int
        How many tags there are.

    Raises
    ------
    ConfigError
        The prefix has a ``{``.
    """

    def __init__(
        self,
        nodes: Nodes,
        keys: Keys,
        layout: Layout,
        limits: Callable[[str], Limits] = lambda _queue: Limits(),
        *,
        number: int = DEFAULT_NUMBER,
    ) -> None:
        self._tags = cluster_tags(number)
        self._stores = {
            tag: Store(nodes.client(slot_of(tag)), keys.of_tag(tag), layout, limits)
            for tag in self._tags
        }

    def of(self, queue: str) -> Store:
        """Return the store of a queue."""
        return self._stores[tag_of(queue, self._tags)]

    def __iter__(self) -> Iterator[Store]:
        """Iterate over all stores, in the order of their slots."""
        return iter(self._stores.values())

    def disconnect(self) -> None:
        """Close all connections."""
        for store in self:
            store.client.connection_pool.disconnect()


def check_number(nodes: Nodes, keys: Keys, number: int) -> None:
    """Store the number of tags in the cluster, unless it has one.

    Raises
    ------
    ConfigError
        The cluster has another number.
    BrokerUnavailable
        The cluster cannot be reached.
    """
    key = keys.cluster_tags
    with nodes.client(slot_of(key)) as given:
        client = Client(connection_pool=given.connection_pool)
        client.set(key, number, nx=True)
        stored = int(cast(bytes, client.get(key)))
    if stored != number:
        raise ConfigError(
            f"{number} hash tags: this cluster has {stored} (key {key}), and queues would change "
            f"theirs; set cluster_tags to {stored}, or use another global_keyprefix"
        )
