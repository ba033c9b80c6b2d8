"""Choose the transport by the URL of a connection; no native delay of Celery on our transports."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

from kombu.utils.imports import symbol_by_name

from celery_delayq.errors import ConfigError

#: The stock schemes of RabbitMQ's URLs.
RABBITMQ_SCHEMES = ("amqp", "amqps")

#: Our schemes for a Redis Cluster, in plain text and over TLS. kombu has none.
CLUSTER_SCHEMES = ("rediscluster", "redisclusters")

#: Our transport for RabbitMQ.
RABBITMQ_TRANSPORT = "celery_delayq.transport.amqp.transport:Transport"

#: Our transport for a Redis Cluster.
CLUSTER_TRANSPORT = "celery_delayq.transport.cluster.transport:ClusterTransport"

#: The schemes that may follow ``delayq+``.
SCHEMES = ("redis", "rediss", "redis+socket", "sentinel", *CLUSTER_SCHEMES, *RABBITMQ_SCHEMES)

#: Scheme to transport, for every scheme that is not a single Redis.
_TRANSPORTS = {
    **dict.fromkeys(RABBITMQ_SCHEMES, RABBITMQ_TRANSPORT),
    **dict.fromkeys(CLUSTER_SCHEMES, CLUSTER_TRANSPORT),
}

_PREFIX = "delayq+"


def _scheme_of(connection: Any) -> str:
    """Return the stock scheme of the URL of a kombu connection."""
    url = str(connection.hostname or "")
    scheme = url.partition("://")[0] if "://" in url else str(connection.transport_cls)
    return scheme.removeprefix(_PREFIX)


def _refuse_comma(connection: Any) -> None:
    """Refuse several servers in one URL. The error shows no text that may be part of a password."""
    for url in (connection.hostname or "", *(connection.alt or [])):
        scheme, separator, rest = str(url).removeprefix(_PREFIX).partition("://")
        servers = re.split("[/?#]", rest.rpartition("@")[2])[0]
        if separator and "," in servers:
            one = f"{_PREFIX}{scheme}://"
            raise ConfigError(
                f"a broker URL {scheme}://… has a comma between servers: expected ';', and the "
                f"scheme before each, such as {one}a;{one}b"
            )


def is_ours(connection: Any) -> bool:
    """Return whether a kombu connection uses a transport of ours, or a subclass of one."""
    bases = connection.get_transport_cls().__mro__
    return any(each.__module__.startswith("celery_delayq.transport.") for each in bases)


def choose_by_url(_owner: Any, stock: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap ``Connection.get_transport_cls`` to choose our transport by the URL."""

    def get_transport_cls(connection: Any) -> Any:
        found = stock(connection)
        if getattr(found, "__module__", "") != "celery_delayq.transport.redis":
            return found
        _refuse_comma(connection)
        return symbol_by_name(_TRANSPORTS.get(_scheme_of(connection), found))

    return get_transport_cls


def exclude_our_transports(_owner: Any, stock: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``detect_quorum_queues``, by which Celery decides whether it delays tasks natively."""

    ours = cache(symbol_by_name)  # called for each task with an ETA

    def detect_quorum_queues(app: Any, driver_type: str) -> tuple[bool, str]:
        found: tuple[bool, str] = stock(app, driver_type)
        if found[0]:
            connection = app.producer_pool.connections.connection
            if isinstance(connection.transport, ours(RABBITMQ_TRANSPORT)):
                return False, ""
        return found

    return detect_quorum_queues
