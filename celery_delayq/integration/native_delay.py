"""Celery's native delay for RabbitMQ's quorum queues, which our delays replace."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from kombu.utils.imports import symbol_by_name

from celery_delayq.integration.broker_urls import TRANSPORT


def but_not_ours(_owner: Any, stock: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``detect_quorum_queues`` where Celery asks in order to delay tasks by itself."""

    @wraps(stock)
    def detect_quorum_queues(app: Any, driver_type: str) -> tuple[bool, str]:
        ours = symbol_by_name(TRANSPORT) if driver_type == "amqp" else ()
        if ours and isinstance(app.producer_pool.connections.connection.transport, ours):
            return False, ""
        found: tuple[bool, str] = stock(app, driver_type)
        return found

    return detect_quorum_queues
