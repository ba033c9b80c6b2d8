"""Do not copy queues and exchanges that are already declared.

For each message kombu binds a copy of the queue and of its exchange to the channel, only to find
that the queue is declared. For each producer from a pool, kombu copies the nameless
default exchange. Transports of other brokers are unchanged: another app of the process may use one.
Benchmark row: ``fast-declared``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kombu import Exchange, Queue

from celery_delayq.integration.fast.group import Group
from celery_delayq.integration.replace import Replace


class _NoExchange(Exchange):
    """The exchange of a producer without an exchange: a channel needs no copy of it."""

    def bind(self, _channel: Any) -> _NoExchange:
        return self


_NO_EXCHANGE = _NoExchange()


def _is_ours(connection: Any) -> bool:
    """Return whether the transport is ours: only ours has ``batches``."""
    return connection is not None and hasattr(connection.transport, "batches")


def skip_declared(_owner: type, declare: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``Producer.maybe_declare``: test whether a queue is declared before kombu copies it."""

    def maybe_declare(producer: Any, entity: Any, *args: Any, **policy: Any) -> Any:
        if isinstance(entity, Queue) and entity.can_cache_declaration:
            connection = producer.connection
            if _is_ours(connection) and hash(entity) in connection.declared_entities:
                return False
        return declare(producer, entity, *args, **policy)

    return maybe_declare


def skip_unnamed_exchange(_owner: type, create: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``create_producer`` of a pool: an exchange without a name is never copied."""

    def create_producer(pool: Any) -> Any:
        producer = create(pool)
        exchange = producer.exchange
        if type(exchange) is Exchange and not exchange.name and _is_ours(producer.connection):
            producer.exchange = _NO_EXCHANGE
        return producer

    return create_producer


GROUP = Group(
    name="declared",
    process=(
        Replace(
            target="kombu.messaging:Producer.maybe_declare",
            by=skip_declared,
            without="kombu copies a queue and its exchange before it tests whether the queue is "
            "declared.",
        ),
        Replace(
            target="kombu.pools:ProducerPool.create_producer",
            by=skip_unnamed_exchange,
            without="kombu copies the nameless default exchange for each producer that it takes "
            "from a pool.",
        ),
    ),
    upstream="kombu: have `_maybe_declare` test `hash(entity) in declared_entities` before "
    "`_ensure_channel_is_bound`, and a producer bind its exchange only if that has a name.",
)
