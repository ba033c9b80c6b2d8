"""The stores of a Redis Cluster."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any, cast

from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_delayq.errors import BrokerUnavailable, ConfigError
from celery_delayq.model.cluster_tags import SLOTS, cluster_tags, slot_of
from celery_delayq.settings import Limits
from celery_delayq.store.cluster.nodes import NODE_TIMEOUT_SECONDS, Nodes
from celery_delayq.store.keys import Keys, Layout
from celery_delayq.store.scripting.client import Client
from celery_delayq.store.store import Store
from celery_delayq.store.stores import Stores

#: Number of keys that store the number of tags.
TAG_COUNT_KEYS = 3


def cluster_stores(
    nodes: Nodes,
    keys: Keys,
    layout: Layout,
    limits: Callable[[str], Limits] = lambda _queue: Limits(),
    *,
    number: int,
    **options: Any,
) -> Stores:
    """Return a store for each hash tag.

    Parameters
    ----------
    nodes : Nodes
        The cluster.
    keys : Keys
        Names of keys on a single Redis, with the same prefix.
    layout : Layout
        The ready lists of this connection's queues.
    limits : Callable[[str], Limits]
        Returns the limits of a queue.
    number : int
        The number of tags.
    options : Any
        Override the options of all connections.

    Raises
    ------
    ConfigError
        The prefix contains a ``{``.
    """
    return Stores(
        {
            tag: Store(nodes.client(slot_of(tag), **options), keys.of_tag(tag), layout, limits)
            for tag in cluster_tags(number)
        }
    )


def address_of(store: Store) -> str:
    """Return the address of the master that has a store's hash tag.

    Raises
    ------
    redis.exceptions.ConnectionError
        No node of the cluster tells it.
    """
    nodes: Nodes = store.client.connection_pool.connection_kwargs["nodes"]
    master = nodes.master_of(slot_of(store.keys.tag))
    return f"{master.host}:{master.port}"


def number_keys(keys: Keys) -> list[str]:
    """Return the keys that store the number of tags: one in each third of the slots.

    So one of these keys can be read while a master is away.
    """
    names = [keys.cluster_tags, *(f"{keys.cluster_tags}:{number}" for number in range(64))]
    thirds: dict[int, str] = {}
    for name in names:
        thirds.setdefault(slot_of(name) * TAG_COUNT_KEYS // SLOTS, name)
    return [*thirds.values()]


def check_number(nodes: Nodes, keys: Keys, number: int) -> None:
    """Store the number of tags in the cluster, or check the number that it has.

    Masters that are away are skipped. At least one master must answer.

    Raises
    ------
    ConfigError
        The cluster has another number.
    BrokerUnavailable
        The cluster cannot be reached.
    """
    has_answered = False
    missing: list[tuple[Client, str]] = []
    outage: BrokerUnavailable | None = None
    # A silent master is asked only once, since others may answer.
    quick = {"socket_timeout": NODE_TIMEOUT_SECONDS, "retry": Retry(NoBackoff(), 0)}
    with ExitStack() as stack:
        for key in number_keys(keys):
            given = stack.enter_context(nodes.briefly(slot_of(key), **quick))
            client = Client(connection_pool=given.connection_pool)
            try:
                stored = cast("bytes | None", client.get(key))
            except BrokerUnavailable as exc:
                outage = exc
                continue
            has_answered = True
            if stored is None:
                missing.append((client, key))
            else:
                _check_same(number, int(stored), key)
        if outage and not has_answered:
            raise outage
        # Only if no key has another number: a lost key must not get a wrong number.
        for client, key in missing:
            with suppress(BrokerUnavailable):
                client.set(key, number, nx=True)
                _check_same(number, int(cast(bytes, client.get(key))), key)


def _check_same(number: int, stored: int, key: str) -> None:
    if stored != number:
        raise ConfigError(
            f"{number} hash tags: this cluster has {stored} (key {key}), and queues would "
            f"change theirs; set cluster_tags to {stored}, or use another global_keyprefix"
        )
