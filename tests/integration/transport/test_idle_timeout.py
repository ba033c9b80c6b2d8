"""Redis closes idle connections (``timeout``): what a waiting worker has popped is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from redis import Redis

from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.store.server.checks import closes_idle_after
from celery_delayq.testing import wait_until
from tests.integration.conftest import MakeApp
from tests.support.scene import StartWorker, start_worker

pytestmark = pytest.mark.each_server

#: Seconds after which the server closes idle connections: a long wait is 15 s.
IDLE_SECONDS = 2

#: Keeps Redis busy for more than 0.1 s, so that it looks for idle connections before it has sent
#: any reply. It reads no clock: TIME stands still within a script of Valkey and of Redis 7.2.
SLOW = "for _ = 1, 50000000 do end"


@pytest.fixture
def broker(delayq_redis_factory: Callable[..., EmbeddedRedis]) -> EmbeddedRedis:
    return delayq_redis_factory(options={"timeout": IDLE_SECONDS})


def idle(redis: Redis) -> list[int]:
    """Return for how many seconds the connections wait that wait for a list."""
    clients = cast("list[dict[str, Any]]", redis.client_list())
    return [int(each["idle"]) for each in clients if "b" in each["flags"]]


@pytest.mark.parametrize("config", ["known", pytest.param("refused", marks=pytest.mark.full)])
def test_a_message_of_a_queue_that_is_popped_is_not_lost(
    delayq_worker: StartWorker, broker: EmbeddedRedis, make_app: MakeApp, redis: Redis, config: str
) -> None:
    """It comes while all connections are idle and Redis is slow."""
    url, client = broker.url_for("delayq+redis"), broker.client()
    if config == "refused":
        client.execute_command("ACL", "SETUSER", "default", "-config")
    make_app(broker=url).send_task("lease.add", (1, 1), queue="aside")
    conf = {"temporary": "brief"}
    start_worker(delayq_worker, "lease_tasks", "threads", conf=conf, broker_url=url)
    longest = 0

    def has_waited() -> bool:
        nonlocal longest
        longest = max([longest, *idle(client)])
        return longest > IDLE_SECONDS or client.time()[0] > began + 3 * IDLE_SECONDS

    wait_until(lambda: idle(client), what="the worker is idle")
    began = client.time()[0]
    wait_until(has_waited, what="it has been idle for a while")
    with client.pipeline(transaction=True) as pipe:
        pipe.eval(SLOW, 0)
        pipe.rpoplpush("aside", "brief")
        pipe.execute()

    wait_until(lambda: redis.llen("log"), what="the task")
    assert longest <= IDLE_SECONDS
    client.close()


def test_the_time_is_read(broker: EmbeddedRedis) -> None:
    with broker.client() as client:
        assert closes_idle_after(client) == IDLE_SECONDS
        client.config_set("timeout", 0)
        assert closes_idle_after(client) == float("inf")
        client.execute_command("ACL", "SETUSER", "default", "-config")
        assert closes_idle_after(client) is None
