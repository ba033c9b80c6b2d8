"""Celery's native delay for RabbitMQ's quorum queues, which our delays replace."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

from kombu.utils.imports import symbol_by_name

from celery_delayq.integration.broker_urls import TRANSPORT


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
