"""Which broker the URL of a connection names, and no native delay of Celery on ours."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

from kombu.utils.imports import symbol_by_name

#: The stock schemes of RabbitMQ's URLs.
RABBITMQ = ("amqp", "amqps")

#: Our transport for RabbitMQ.
TRANSPORT = "celery_delayq.transport.amqp.transport:Transport"

#: The stock scheme behind each of ours.
SCHEMES = ("redis", "rediss", "redis+socket", "sentinel", *RABBITMQ)

_PREFIX = "delayq+"


def leads_to_rabbitmq(connection: Any) -> bool:
    """Return whether the broker of a kombu connection is RabbitMQ, by its URL."""
    url = str(connection.hostname or "")
    scheme = url.partition("://")[0] if "://" in url else str(connection.transport_cls)
    return scheme.removeprefix(_PREFIX) in RABBITMQ


def is_ours(connection: Any) -> bool:
    """Return whether a kombu connection is by a transport of ours, or by a subclass of one."""
    bases = connection.get_transport_cls().__mro__
    return any(each.__module__.startswith("celery_delayq.transport.") for each in bases)


def by_url(_owner: Any, stock: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap ``Connection.get_transport_cls``: our transport for RabbitMQ where the URL says so."""

    @wraps(stock)
    def get_transport_cls(connection: Any) -> Any:
        found = stock(connection)
        is_ours = getattr(found, "__module__", "") == "celery_delayq.transport.redis"
        return symbol_by_name(TRANSPORT) if is_ours and leads_to_rabbitmq(connection) else found

    return get_transport_cls


def but_not_ours(_owner: Any, stock: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``detect_quorum_queues`` where Celery asks in order to delay tasks by itself."""

    ours = cache(symbol_by_name)  # asked for each task with an ETA

    @wraps(stock)
    def detect_quorum_queues(app: Any, driver_type: str) -> tuple[bool, str]:
        connection = app.producer_pool.connections.connection
        if driver_type == "amqp" and isinstance(connection.transport, ours(TRANSPORT)):
            return False, ""
        found: tuple[bool, str] = stock(app, driver_type)
        return found

    return detect_quorum_queues
