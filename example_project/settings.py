"""URLs of broker, Redis and receiver from the environment; the demonstration sets them."""

from __future__ import annotations

import os

BROKER_URL_VARIABLE = "EXAMPLE_BROKER_URL"
LEDGER_URL_VARIABLE = "EXAMPLE_LEDGER_URL"
WEBHOOK_URL_VARIABLE = "EXAMPLE_WEBHOOK_URL"
WEBHOOK_SECRET_VARIABLE = "EXAMPLE_WEBHOOK_SECRET"


def broker_url() -> str:
    """Return the URL of the broker, with the scheme that keeps delayed tasks in the broker."""
    return os.environ.get(BROKER_URL_VARIABLE, "delayq+redis://127.0.0.1:6379/0")


def is_on_rabbitmq() -> bool:
    """Return whether the broker is RabbitMQ, which keeps delays and cannot change them."""
    return broker_url().startswith("delayq+amqp")


def ledger_url() -> str:
    """Return the URL of the Redis database in which the tasks record their starts."""
    return os.environ.get(LEDGER_URL_VARIABLE, "redis://127.0.0.1:6379/0")


def webhook_url() -> str:
    """Return the URL that receives webhooks."""
    return os.environ.get(WEBHOOK_URL_VARIABLE, "http://127.0.0.1:8010/reminders")


def webhook_secret() -> str | None:
    """Return the key of the signatures, `None` for no signatures."""
    return os.environ.get(WEBHOOK_SECRET_VARIABLE) or None
