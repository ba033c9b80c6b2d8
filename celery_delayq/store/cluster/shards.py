"""The stores of a Redis Cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from celery_delayq.errors import ConfigError
from celery_delayq.model.cluster_tags import cluster_tags, slot_of
from celery_delayq.settings import Limits
from celery_delayq.store.cluster.nodes import Nodes
from celery_delayq.store.keys import Keys, Layout
from celery_delayq.store.schedule import Store
from celery_delayq.store.scripting.client import Client
from celery_delayq.store.shards import Shards


def cluster_shards(
    nodes: Nodes,
    keys: Keys,
    layout: Layout,
    limits: Callable[[str], Limits] = lambda _queue: Limits(),
    *,
    number: int,
) -> Shards:
    """Return a store for each hash tag.

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
    return Shards(
        {
            tag: Store(nodes.client(slot_of(tag)), keys.of_tag(tag), layout, limits)
            for tag in cluster_tags(number)
        }
    )


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
