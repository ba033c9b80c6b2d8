"""The hash tag of a Redis Cluster to which a channel goes."""

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

#: Seconds to connect where ``socket_connect_timeout`` says nothing: a host may be gone.
CONNECT_SECONDS = 2.0

#: Seconds to wait for a reply where ``socket_timeout`` says nothing, in threads of their own.
REPLY_SECONDS = 10.0


class Slot:
    """The slot of a hash tag, at whichever node has it.

    Parameters
    ----------
    tag : str
        The hash tag.
    """

    def __init__(self, tag: str) -> None:
        self.tag = tag
        #: What a user sets: the tag goes behind it.
        self.users_prefix = ""

    @property
    def prefix(self) -> str:
        """What kombu puts before the names of its keys."""
        return self.keys.of_tag(self.tag).prefix

    @property
    def keys(self) -> Keys:
        """Names of keys as a single Redis has them, without a hash tag."""
        return Keys(self.users_prefix)

    @property
    def name(self) -> str:
        """What log lines call it."""
        return f"shard of {self.tag}"

    def options(
        self, nodes: Nodes, params: dict[str, Any], *, asynchronous: bool
    ) -> dict[str, Any]:
        """Return what connections are made with, for kombu's *params*."""
        params = {name: params[name] for name in params if name not in ("host", "port")}
        params["socket_connect_timeout"] = params.get("socket_connect_timeout") or CONNECT_SECONDS
        params |= {"nodes": nodes, "slot": slot_of(self.tag)}
        if asynchronous:  # else redis-py connects again by itself, unknown to the poller
            return {**_hurried(params), "retry": Retry(NoBackoff(), 0)}
        return {**params, "socket_timeout": params.get("socket_timeout") or REPLY_SECONDS}

    def ping(self, nodes: Nodes) -> None:
        """Raise an error of a connection if the shard is away.

        Its node must serve the slot, or it would be lost and back again and again.
        """
        absent = self.keys.of_tag(self.tag).interrupt("probe")
        # An account that may not look has an answer too.
        with nodes.briefly(slot_of(self.tag), **NODE_OPTIONS) as client, suppress(ResponseError):
            client.exists(absent)
        nodes.note_heard(nodes.master_of(slot_of(self.tag)))


def _set_prefix(channel: Any, prefix: str) -> None:
    channel.slot.users_prefix = prefix


def _pool_of(channel: Any) -> Any:
    if channel._pool is None:
        pool = channel._get_pool()
        if worker.objects()["worker"] is not None:
            pool.connection_kwargs = _hurried(pool.connection_kwargs)
        channel._pool = pool
    return channel._pool


#: ``global_keyprefix`` of a channel with a slot; kombu sets it to what the user gives.
slot_prefix = property(lambda channel: channel.slot.prefix, _set_prefix)

#: ``pool`` of a channel with a slot: for commands. A worker's event loop asks a silent node once.
slot_pool = property(_pool_of)


class _Silent:
    """Stands for a client until there is one."""

    def ping(self) -> None:
        """Do nothing."""


@contextmanager
def unpinged(channel: Any) -> Iterator[None]:
    """Make a channel, which kombu would refuse where its PING has no answer, without that PING."""
    vars(channel)["client"] = _Silent()
    yield
    del vars(channel)["client"]


def _hurried(params: dict[str, Any]) -> dict[str, Any]:
    """Return what connections of an event loop are made with: it serves the other shards too."""
    return {**params, **HURRIED_OPTIONS, **quick(params)}
