"""Where Redis is, from the environment; the demonstration sets both for its processes."""

from __future__ import annotations

import os

BROKER_URL_VARIABLE = "EXAMPLE_BROKER_URL"
LEDGER_URL_VARIABLE = "EXAMPLE_LEDGER_URL"


def broker_url() -> str:
    """Give the URL of the broker, with the scheme that makes delayed tasks wait in Redis."""
    return os.environ.get(BROKER_URL_VARIABLE, "delayq+redis://127.0.0.1:6379/0")


def ledger_url() -> str:
    """Give the URL of the Redis database that the tasks write down their starts in."""
    return os.environ.get(LEDGER_URL_VARIABLE, "redis://127.0.0.1:6379/0")
