"""Skip a test without Java or RabbitMQ; fail it with ``CI=true``."""

from __future__ import annotations

import os

import pytest

from celery_delayq.embedded.rabbitmq import find_rabbitmq_server
from celery_delayq.errors import ConfigError, ServerNotFound


def left_out(reason: str) -> BaseException:
    """Return an exception that skips a test; with CI=true it fails the test."""
    how = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
    return how.Exception(reason)


def need_java() -> None:
    """Skip a test without Java."""
    from celery_delayq.spark import check_java

    try:
        check_java()
    except ConfigError as exc:
        raise left_out(str(exc)) from exc


def need_rabbitmq() -> None:
    """Skip a test without RabbitMQ."""
    try:
        find_rabbitmq_server()
    except ServerNotFound as exc:
        raise left_out(str(exc)) from exc
