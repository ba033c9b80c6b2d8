"""Where broker, Redis and receiver are, from the environment; the demonstration sets all of it."""

from __future__ import annotations

import os

BROKER_URL_VARIABLE = "EXAMPLE_BROKER_URL"
LEDGER_URL_VARIABLE = "EXAMPLE_LEDGER_URL"
WEBHOOK_URL_VARIABLE = "EXAMPLE_WEBHOOK_URL"
WEBHOOK_SECRET_VARIABLE = "EXAMPLE_WEBHOOK_SECRET"


def broker_url() -> str:
    """Give the URL of the broker, with the scheme that makes delayed tasks wait in it."""
    return os.environ.get(BROKER_URL_VARIABLE, "delayq+redis://127.0.0.1:6379/0")


def is_on_rabbitmq() -> bool:
    """Say whether the broker is RabbitMQ, which keeps delays and can do no more with them."""
    return broker_url().startswith("delayq+amqp")


def ledger_url() -> str:
    """Give the URL of the Redis database that the tasks write down their starts in."""
    return os.environ.get(LEDGER_URL_VARIABLE, "redis://127.0.0.1:6379/0")


def webhook_url() -> str:
    """Give the URL that reminders are told to."""
    return os.environ.get(WEBHOOK_URL_VARIABLE, "http://127.0.0.1:8010/reminders")


def webhook_secret() -> str | None:
    """Give the key of the signatures, `None` where there is none: then nothing is signed."""
    return os.environ.get(WEBHOOK_SECRET_VARIABLE) or None
