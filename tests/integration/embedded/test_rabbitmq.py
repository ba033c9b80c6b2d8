"""Nodes of a RabbitMQ cluster that start side by side."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_delayq.embedded.rabbitmq import EmbeddedRabbitMQ
from celery_delayq.testing import wait_until
from tests.support import TIMEOUT
from tests.support.skips import need_rabbitmq

pytestmark = pytest.mark.full


def test_a_node_that_ends_while_the_others_start_is_started_again() -> None:
    need_rabbitmq()
    with EmbeddedRabbitMQ(nodes=2) as broker, ThreadPoolExecutor(1) as thread:
        broker.stop()
        before = broker.log(1)

        starting = thread.submit(broker.start)
        wait_until(lambda: broker.log(1) not in ("", before), TIMEOUT, "it starts")
        broker.kill(1)
        starting.result()

        assert [each["running"] for each in broker.ask("GET", "nodes")] == [True, True]
