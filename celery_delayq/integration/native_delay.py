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
        found: tuple[bool, str] = stock(app, driver_type)
        if found[0]:
            transport = app.producer_pool.connections.connection.get_transport_cls()
            if transport is symbol_by_name(TRANSPORT):
                return False, ""
        return found

    return detect_quorum_queues
