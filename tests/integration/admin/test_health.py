"""``delayq health --ready`` on real servers: ready, away, refusing, or set up wrongly."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import pytest
from redis import Redis

from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.embedded.ports import free_port
from celery_delayq.embedded.rabbitmq import EmbeddedRabbitMQ
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.conftest import MakeApp
from tests.integration.transport.amqp.test_blocked import low_on_memory
from tests.support.cli import CommandLine, Ran
from tests.support.stopped import stopped

NewRedis = Callable[..., EmbeddedRedis]


def health(make_app: MakeApp, broker: str, *options: str) -> Ran:
    return CommandLine(make_app(broker=broker))("health", "--ready", "--timeout", "3", *options)


def test_a_redis_that_takes_tasks_is_ready_and_nothing_is_stored(
    make_app: MakeApp, delayq_broker_url: str, redis: Redis
) -> None:
    ran = health(make_app, delayq_broker_url)
    as_json = health(make_app, delayq_broker_url, "--json")

    assert (ran.code, ran.out, ran.err) == (0, "ready\n", "")
    assert as_json.json == {"ready": True, "reason": ""}
    assert redis.keys() == []


#: What makes Redis refuse all writes, and what is said then.
REFUSALS = {
    "replica": (["REPLICAOF", "127.0.0.1", "1"], "read only replica"),
    "full": (["CONFIG", "SET", "maxmemory", "1"], "no memory left"),
    "no replicas": (["CONFIG", "SET", "min-replicas-to-write", "1"], "NOREPLICAS"),
    "earlier layout": (["SET", "delayq:agenda", "x"], "a version before 0.1.0"),
}


@pytest.mark.parametrize(("command", "said"), REFUSALS.values(), ids=REFUSALS)
def test_a_redis_that_refuses_writes_is_not_ready(
    make_app: MakeApp, delayq_redis_factory: NewRedis, command: list[str], said: str
) -> None:
    server = delayq_redis_factory()
    with server.client() as client:
        client.execute_command(*command)

        ran = health(make_app, server.url_for("delayq+redis"))

    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("not ready: ")
    assert said in ran.err


def test_a_redis_that_is_away_frozen_or_refuses_the_password_is_not_ready(
    make_app: MakeApp, delayq_redis_factory: NewRedis
) -> None:
    server = delayq_redis_factory(password="s3cret")
    port = free_port()

    away = health(make_app, f"delayq+redis://:pa55word@127.0.0.1:{port}/0")
    wrong = health(make_app, f"delayq+redis://:pa55word@127.0.0.1:{server.port}/0")
    with stopped(server.pid):
        silent = health(make_app, server.url_for("delayq+redis"), "--json")

    assert [away.code, wrong.code, silent.code] == [1, 1, 1]
    assert away.err == f"not ready: cannot reach Redis at 127.0.0.1:{port}: Connection refused\n"
    assert "invalid username-password pair" in wrong.err
    where = f"delayq+redis://127.0.0.1:{server.port}/0"
    reason = f"the broker at {where} did not answer in 3 s"
    assert silent.json == {"ready": False, "reason": reason}
    assert "pa55word" not in away.err + wrong.err


def test_wrong_use_exits_with_2(make_app: MakeApp, delayq_redis: RedisUnderTest) -> None:
    own = delayq_redis.server.url_for("delayq+redis")
    unknown = {"delayq": {"liveness": "/tmp/alive"}}

    plain = CommandLine(make_app())("health")
    stock = health(make_app, delayq_redis.url)
    setting = CommandLine(make_app(broker=own, broker_transport_options=unknown))(
        "health", "--ready"
    )

    assert [plain.code, stock.code, setting.code] == [2, 2, 2]
    assert "give --ready" in plain.err
    assert "a URL that begins with delayq+" in stock.err
    assert "did you mean liveness_file?" in setting.err


def test_a_rabbitmq_is_ready_unless_it_is_away_silent_or_has_an_alarm(
    make_app: MakeApp, delayq_rabbitmq: str, delayq_rabbitmq_server: EmbeddedRabbitMQ
) -> None:
    assert health(make_app, delayq_rabbitmq).out == "ready\n"
    with low_on_memory(delayq_rabbitmq_server):
        blocked = health(make_app, delayq_rabbitmq)
    assert (blocked.code, blocked.out) == (1, "")
    assert "RabbitMQ has blocked this connection (low on memory)" in blocked.err
    assert health(make_app, delayq_rabbitmq).out == "ready\n"

    with ExitStack() as stack:
        stack.enter_context(stopped(delayq_rabbitmq_server.pid))
        assert health(make_app, delayq_rabbitmq).code == 1
    url = f"127.0.0.1:{free_port()}//"
    away = health(make_app, f"delayq+amqp://shop:pa55word@{url}")
    assert away.code == 1
    assert f"cannot reach the broker at delayq+amqp://{url}: " in away.err
    assert "Connection refused" in away.err
