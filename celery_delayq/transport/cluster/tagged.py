"""A channel all of whose keys carry one hash tag of a Redis Cluster."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from redis.backoff import NoBackoff
from redis.exceptions import ResponseError
from redis.retry import Retry

from celery_delayq.model.cluster_tags import slot_of
from celery_delayq.store.cluster.nodes import ASK_TIMEOUT, SlotConnection, SlotSSLConnection
from celery_delayq.store.keys import Keys
from celery_delayq.transport.redis import Channel

#: Seconds to connect where ``socket_connect_timeout`` says nothing: a host may be gone.
CONNECT_TIMEOUT = 2.0


class _Silent:
    """Stands for a client until there is one."""

    def ping(self) -> None:
        """Do nothing."""


class TaggedChannel(Channel):
    """A channel to whichever node has the slot of its hash tag.

    Parameters
    ----------
    connection : ClusterTransport
        The transport.
    tag : str
        The hash tag.
    """

    connection_class = SlotConnection
    connection_class_ssl = SlotSSLConnection

    #: What a user sets: the tag goes behind it.
    _users_prefix = ""

    #: Whether the last error of a connection is that of a callback for a message. The error itself
    #: would keep the message alive.
    callback_failed = False

    def __init__(self, connection: Any, tag: str, **kwargs: Any) -> None:
        self.tag = tag
        # kombu sends a PING, and would refuse a channel whose shard is away.
        self.__dict__["client"] = _Silent()
        super().__init__(connection, **kwargs)
        del self.__dict__["client"]

    @property
    def keys(self) -> Keys:
        """Names of keys as a single Redis has them, without a hash tag."""
        return Keys(self._users_prefix)

    @property
    def global_keyprefix(self) -> str:
        """What kombu puts before the names of its keys."""
        return self.keys.of_tag(self.tag).prefix

    @global_keyprefix.setter
    def global_keyprefix(self, prefix: str) -> None:
        self._users_prefix = prefix

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        params: dict[str, Any] = super()._connparams(asynchronous)
        nodes = self.connection.nodes_by(params)
        del params["host"], params["port"]
        params["socket_connect_timeout"] = params.get("socket_connect_timeout") or CONNECT_TIMEOUT
        if asynchronous:  # else redis-py connects again by itself, unknown to the poller
            params["retry"] = Retry(NoBackoff(), 0)
        return {**params, "nodes": nodes, "slot": slot_of(self.tag)}

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[[Any], Any], *args: Any, **kwargs: Any
    ) -> None:
        """Consume; note an error of the callback, such as that of a result backend."""

        def noting(message: Any) -> Any:
            try:
                return callback(message)
            except self.connection_errors:
                self.callback_failed = True
                raise

        super().basic_consume(queue, no_ack, noting, *args, **kwargs)

    def resume(self) -> None:
        """Do what could not be done while the shard was away."""

    @property
    def name(self) -> str:
        """What log lines call it."""
        return f"shard of {self.tag}"

    def disconnect(self) -> None:
        """Close the connections that the poller has, and forget requests without a reply."""
        self._fetcher.lost()
        # They would take up the prefetch of all shards for as long as this one is away.
        self._fetcher.abandon()
        for name in ("client", "subclient"):
            connection = getattr(vars(self).get(name), "connection", None)
            if connection is not None:
                connection.disconnect()

    def ping(self) -> None:
        """Raise an error of a connection if the shard is away.

        Its node must serve the slot, or it would be lost and back again and again.
        """
        connection = self.connection
        if connection is None:  # closed meanwhile, by another thread
            return
        absent = self.keys.of_tag(self.tag).interrupt("probe")
        quick = {"socket_connect_timeout": ASK_TIMEOUT, "socket_timeout": ASK_TIMEOUT}
        # An account that may not look has an answer too.
        with (
            connection.nodes.briefly(slot_of(self.tag), **quick) as client,
            suppress(ResponseError),
        ):
            client.exists(absent)
