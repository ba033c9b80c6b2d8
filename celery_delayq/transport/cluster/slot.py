"""The slot of a Redis Cluster to which a channel connects."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from redis.backoff import NoBackoff
from redis.exceptions import ResponseError
from redis.retry import Retry

from celery_delayq.integration import worker
from celery_delayq.model.cluster_tags import slot_of
from celery_delayq.store.cluster.nodes import HURRIED_OPTIONS, NODE_OPTIONS, Nodes, quick
from celery_delayq.store.keys import Keys

#: Most seconds to connect if ``socket_connect_timeout`` is not set: a host may be lost.
CONNECT_SECONDS = 2.0

#: Most seconds to wait for a reply if ``socket_timeout`` is not set. Not for event loops.
REPLY_SECONDS = 10.0


class Slot:
    """The slot of a hash tag. Any node may have the slot.

    Parameters
    ----------
    tag : str
        The hash tag.
    """

    def __init__(self, tag: str) -> None:
        self.tag = tag
        #: The user's ``global_keyprefix``. The hash tag follows it.
        self.users_prefix = ""

    @property
    def prefix(self) -> str:
        """The prefix of kombu's keys."""
        return self.keys.of_tag(self.tag).prefix

    @property
    def keys(self) -> Keys:
        """The names of keys without a hash tag, as on a single Redis."""
        return Keys(self.users_prefix)

    @property
    def name(self) -> str:
        """The name in log lines."""
        return f"shard of {self.tag}"

    def options(
        self, nodes: Nodes, params: dict[str, Any], *, asynchronous: bool
    ) -> dict[str, Any]:
        """Return the options of connections, from kombu's *params*."""
        params = {name: params[name] for name in params if name not in ("host", "port")}
        params["socket_connect_timeout"] = params.get("socket_connect_timeout") or CONNECT_SECONDS
        params |= {"nodes": nodes, "slot": slot_of(self.tag)}
        if asynchronous:  # no retry: redis-py would connect again, and the poller would not know
            return {**_hurried(params), "retry": Retry(NoBackoff(), 0)}
        return {**params, "socket_timeout": params.get("socket_timeout") or REPLY_SECONDS}

    def ping(self, nodes: Nodes) -> None:
        """Raise a connection error if the shard is away.

        The node must serve the slot. A plain PING would succeed at a node that does not serve it,
        and the shard would be lost again at the next command.
        """
        absent = self.keys.of_tag(self.tag).interrupt("probe")
        # An account without the right to EXISTS gets an error reply, which is an answer too.
        with nodes.briefly(slot_of(self.tag), **NODE_OPTIONS) as client, suppress(ResponseError):
            client.exists(absent)
        nodes.note_heard(nodes.master_of(slot_of(self.tag)))


def _set_prefix(channel: Any, prefix: str) -> None:
    channel.slot.users_prefix = prefix


def _pool_of(channel: Any) -> Any:
    if channel._pool is None:
        pool = channel._get_pool()
        if worker.changed_objects()["worker"] is not None:
            pool.connection_kwargs = _hurried(pool.connection_kwargs)
        channel._pool = pool
    return channel._pool


#: ``global_keyprefix`` of a channel with a slot. kombu sets the user's value.
slot_prefix = property(lambda channel: channel.slot.prefix, _set_prefix)

#: ``pool`` of a channel with a slot, for commands. A worker's event loop asks a silent node once.
slot_pool = property(_pool_of)


class _Silent:
    """Replaces kombu's client while a channel is created."""

    def ping(self) -> None:
        """Do nothing."""


@contextmanager
def unpinged(channel: Any) -> Iterator[None]:
    """Create a channel without kombu's PING. With it, kombu refuses the channel of a lost shard."""
    vars(channel)["client"] = _Silent()
    yield
    del vars(channel)["client"]


def _hurried(params: dict[str, Any]) -> dict[str, Any]:
    """Return the options of an event loop's connections: the loop must also serve other shards."""
    return {**params, **HURRIED_OPTIONS, **quick(params)}
