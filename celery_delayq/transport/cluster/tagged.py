"""A channel all of whose keys carry one hash tag of a Redis Cluster."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from redis import ConnectionPool
from redis.backoff import NoBackoff
from redis.client import PubSub
from redis.exceptions import ResponseError
from redis.retry import Retry

from celery_delayq.integration import worker
from celery_delayq.model.cluster_tags import slot_of
from celery_delayq.store.cluster.nodes import (
    ASK_TIMEOUT,
    HURRIED,
    QUICK,
    SlotConnection,
    SlotSSLConnection,
    quick,
)
from celery_delayq.store.keys import Keys
from celery_delayq.transport.poller import is_readable
from celery_delayq.transport.redis import Channel

logger = logging.getLogger(__name__)

#: To which redis-py knows the reply.
PING = PubSub.HEALTH_CHECK_MESSAGE

#: Seconds to connect where ``socket_connect_timeout`` says nothing: a host may be gone.
CONNECT_TIMEOUT = 2.0

#: Seconds to wait for a reply where ``socket_timeout`` says nothing, in threads of their own.
REPLY_TIMEOUT = 10.0


def _hurried(params: dict[str, Any]) -> dict[str, Any]:
    """Return what connections of an event loop are made with: it serves the other shards too."""
    return {**params, **HURRIED, **quick(params)}


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

    #: kombu's, made on first use.
    _pool: ConnectionPool | None

    #: When the node of the subscription was asked for a sign of life.
    _pinged_at = 0.0

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
        params = {**params, "nodes": nodes, "slot": slot_of(self.tag)}
        if asynchronous:  # else redis-py connects again by itself, unknown to the poller
            return {**_hurried(params), "retry": Retry(NoBackoff(), 0)}
        return {**params, "socket_timeout": params.get("socket_timeout") or REPLY_TIMEOUT}

    @property
    def pool(self) -> ConnectionPool:
        """Connections for commands; in a worker's event loop a silent node is asked once."""
        if self._pool is None:
            pool: ConnectionPool = self._get_pool()
            if worker.objects()["worker"] is not None:
                pool.connection_kwargs = _hurried(pool.connection_kwargs)
            self._pool = pool
        return self._pool

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
    def overdue(self) -> float:
        """For how many seconds the reply that the poller awaits has been missing."""
        connection = self._in_poll
        if not connection or connection._sock is None:
            return 0.0
        wait = self._fetcher.idle.seconds if self._fetcher.asked == "sign" else 0.0
        seconds: float = time.monotonic() - self._brpop_sent_at - wait
        # It may be here: the event loop was busy, or nothing may be taken now.
        return 0.0 if seconds <= 0 or is_readable(connection._sock) else seconds

    def watch_subscription(self) -> None:
        """Leave a node that is silent, and ask the one that is subscribed to for a sign of life.

        No timeout of a socket ends the wait for a message.
        """
        connection = self._in_listen and self.subclient.connection
        if not (connection and connection._sock):
            return
        now = time.monotonic()
        if not self.subclient.health_check_response_counter:
            if now - self._pinged_at >= ASK_TIMEOUT:
                self._pinged_at = now
                connection.send_command("PING", PING, check_health=False)
                self.subclient.health_check_response_counter = 1
        elif now - self._pinged_at > ASK_TIMEOUT and not is_readable(connection._sock):
            logger.warning(
                "%s:%s is silent, events and commands of remote control go over other nodes",
                connection.host,
                connection.port,
            )
            connection.note_silent()
            connection.disconnect()
            self.subclient.health_check_response_counter = 0

    @property
    def name(self) -> str:
        """What log lines call it."""
        return f"shard of {self.tag}"

    def disconnect(self) -> None:
        """Close the connections that the poller has, and forget requests without a reply."""
        self._fetcher.lost()
        self._in_poll = None
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
        # An account that may not look has an answer too.
        with (
            connection.nodes.briefly(slot_of(self.tag), **QUICK) as client,
            suppress(ResponseError),
        ):
            client.exists(absent)
        master = connection.nodes.master_of(slot_of(self.tag))
        connection.nodes.note_heard(master)
