"""The tests of this folder run on RabbitMQ; results are in Redis."""

from __future__ import annotations

import pytest


@pytest.fixture
def delayq_broker_url(delayq_rabbitmq: str) -> str:
    """URL of an empty virtual host."""
    return delayq_rabbitmq
