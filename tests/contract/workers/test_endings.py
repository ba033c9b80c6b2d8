"""All endings of a task on RabbitMQ, in each pool, and on a Redis Cluster.

On a single Redis, ``tests/integration/transport/test_endings.py`` also cuts the connection at every
moment.
"""

from __future__ import annotations

from contextlib import suppress

import pytest

from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.transport.test_endings import differences
from tests.support.brokers import Broker
from tests.support.endings.cells import World, cells, expected, worlds
from tests.support.endings.stage import Stage
from tests.support.proxy import Proxy
from tests.support.scene import StartWorker

UNCUT = [each for each in worlds() if not (each.cut or each.results)]
CASES = [("rabbitmq", each) for each in UNCUT]
#: A prefork worker's tasks can end in every way. A broker does not see the pool.
CASES += [("cluster", World("prefork", "late")), ("cluster", World("threads", "early"))]


@pytest.mark.parametrize(("broker", "world"), CASES, indirect=["broker"], ids=str)
def test_each_task_comes_to_its_end(
    world: World, broker: Broker, delayq_redis: RedisUnderTest, delayq_worker: StartWorker
) -> None:
    wanted = {cell.id: expected(world, cell) for cell in cells(world)}
    server = delayq_redis.server
    with Proxy(server.port) as proxy:
        stage = Stage(
            world, cells(world), delayq_worker, server, proxy, delayq_redis.url, other_broker=broker
        )
        try:
            stage.play()
            with suppress(TimeoutError):
                wait_until(lambda: not (differences(stage.outcomes(), wanted) or stage.others()))
            stage.stop()
            assert (differences(stage.outcomes(), wanted), stage.others()) == ({}, set())
        finally:
            stage.close()
