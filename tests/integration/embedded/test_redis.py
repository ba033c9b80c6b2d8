"""Real servers: their life, their data, and that they never outlive Python."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from kombu import Connection
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError
from redis.retry import Retry

from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.embedded.__main__ import main
from celery_delayq.embedded.ports import free_port, is_free
from celery_delayq.errors import EmbeddedRedisError
from celery_delayq.testing import ManagedProcess, has_ended, wait_until
from tests.support import TIMEOUT
from tests.support.skips import need_rabbitmq

CHOICE = "celery_delayq.embedded.redis.free_port"
NO_RETRY = Retry(NoBackoff(), 0)
Servers = Callable[..., EmbeddedRedis]


def test_it_answers_when_started_and_is_gone_after_the_block(delayq_redis_factory: Servers) -> None:
    with delayq_redis_factory() as server:
        assert server.client().ping()
        told = server.client().info("server")
        # Valkey tells clients of Redis the version that it began from.
        assert told.get("valkey_version", told["redis_version"]) == server.version
        pid, folder = server.pid, server.data_dir

    assert has_ended(pid)
    assert not server.running
    assert not folder.exists()


def test_it_listens_on_loopback_only(delayq_redis_factory: Servers) -> None:
    server = delayq_redis_factory()

    listening = psutil.Process(server.pid).net_connections()

    assert {one.laddr for one in listening if one.status == psutil.CONN_LISTEN} == {
        ("127.0.0.1", server.port)
    }


@pytest.mark.parametrize("end", ["stop", "kill", "restart"])
def test_data_and_port_outlive_a_server(delayq_redis_factory: Servers, end: str) -> None:
    server = delayq_redis_factory()
    port, pid = server.port, server.pid
    server.client().set("flight", "UA1545")

    getattr(server, end)()

    assert has_ended(pid)
    server.start()  # does nothing after a restart
    assert server.port == port
    assert server.pid != pid
    assert server.client().get("flight") == b"UA1545"


def test_data_in_a_given_folder_outlive_the_object(
    delayq_redis_factory: Servers, tmp_path: Path
) -> None:
    with delayq_redis_factory(data_dir=tmp_path) as first:
        first.client().set("flight", "B6725")

    with delayq_redis_factory(data_dir=tmp_path) as second:
        assert second.client().get("flight") == b"B6725"
    assert tmp_path.exists()


def test_two_servers_do_not_share_anything(delayq_redis_factory: Servers) -> None:
    one, other = delayq_redis_factory(), delayq_redis_factory()

    one.client().set("flight", "DL461")

    assert one.port != other.port
    assert other.client().dbsize() == 0


@pytest.mark.parametrize("password", ["plain", 'sp ace"quote\\back@slash/:%'])
def test_a_password_is_needed_and_is_in_the_url(
    delayq_redis_factory: Servers, password: str
) -> None:
    server = delayq_redis_factory(password=password)

    with pytest.raises(AuthenticationError):
        server.client(password=None, retry=NO_RETRY).ping()
    with Connection(server.url) as connection:
        connection.ensure_connection(max_retries=1)
    assert password not in " ".join(psutil.Process(server.pid).cmdline())
    assert password not in server.log_file.read_text()


def test_a_unix_socket_is_offered_beside_tcp(delayq_redis_factory: Servers) -> None:
    server = delayq_redis_factory(unix_socket=True, password="pass word")

    with Connection(server.socket_url()) as connection:
        connection.ensure_connection(max_retries=1)
    assert server.client().ping()


def test_settings_reach_the_server(delayq_redis_factory: Servers) -> None:
    server = delayq_redis_factory(
        appendonly=False,
        options={
            "maxmemory": "7mb",
            "lazyfree-lazy-expire": True,
            "client-output-buffer-limit": "pubsub 32mb 8mb 60",
            "databases": 3,
        },
    )

    config = server.client().config_get("*")

    assert config["appendonly"] == "no"
    assert config["maxmemory"] == str(7 * 2**20)
    assert config["lazyfree-lazy-expire"] == "yes"
    assert config["databases"] == "3"
    assert config["save"] == ""


def test_a_wrong_setting_is_an_error_with_the_servers_own_words(
    delayq_redis_factory: Servers,
) -> None:
    with pytest.raises(EmbeddedRedisError, match=r"ended with code 1(.|\n)*maxmemory-polic"):
        delayq_redis_factory(options={"maxmemory-policy": "sometimes"})


def test_a_given_port_that_is_taken_is_an_error(delayq_redis_factory: Servers) -> None:
    first = delayq_redis_factory()

    with pytest.raises(EmbeddedRedisError, match="Address already in use"):
        delayq_redis_factory(port=first.port)
    assert first.client().ping()


def test_a_port_lost_to_another_while_starting_is_replaced(
    delayq_redis_factory: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        offers = iter([taken, free_port()])
        monkeypatch.setattr(CHOICE, lambda: next(offers))

        server = delayq_redis_factory()

        assert server.port != taken
        assert server.client().ping()


def test_another_redis_on_the_port_is_not_taken_for_our_own(
    delayq_redis_factory: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = delayq_redis_factory()
    offers = iter([first.port, free_port()])
    monkeypatch.setattr(CHOICE, lambda: next(offers))

    second = delayq_redis_factory()

    assert second.port != first.port


def test_a_server_that_died_is_noticed_and_can_be_started_again(
    delayq_redis_factory: Servers,
) -> None:
    server = delayq_redis_factory()

    os.kill(server.pid, signal.SIGKILL)
    assert server.wait(timeout=TIMEOUT) == -signal.SIGKILL

    assert not server.running
    assert server.start().client().ping()


def test_a_closed_server_cannot_be_started(delayq_redis_factory: Servers) -> None:
    server = delayq_redis_factory()
    server.close()

    with pytest.raises(EmbeddedRedisError, match="was closed"):
        server.start()


OWNER = """\
import os, sys
from celery_delayq.embedded import EmbeddedRedis
server = EmbeddedRedis(executable=os.environ.get("DELAYQ_REDIS_SERVER") or None).start()
print("pid", server.pid, "folder", server.data_dir, "end")
{rest}
"""


@pytest.mark.parametrize(
    ("rest", "number"),
    [
        ("", None),
        ("raise RuntimeError", None),
        ("sys.stdin.read(); input()", signal.SIGINT),
        ("import time; time.sleep(600)", signal.SIGTERM),
        ("import time; time.sleep(600)", signal.SIGKILL),
    ],
    ids=["end of script", "exception", "Ctrl-C", "SIGTERM", "SIGKILL"],
)
def test_the_server_ends_with_the_python_that_started_it(rest: str, number: int | None) -> None:
    with ManagedProcess([sys.executable, "-c", OWNER.format(rest=rest)]) as owner:
        started = owner.wait_log(r"^pid (\d+) folder (\S+) end$")
        pid, folder = int(started[1]), Path(started[2])
        assert folder.exists()
        if number is not None:
            owner.send_signal(number)
        owner.wait()

        wait_until(lambda: has_ended(pid), TIMEOUT, "the server to end")
        wait_until(lambda: not folder.exists(), TIMEOUT, "its folder to go")


def test_a_forked_child_leaves_its_parents_server_alone(delayq_redis_factory: Servers) -> None:
    fork_and_end = "if os.fork() == 0:\n    sys.exit()\nos.wait()\nprint(server.client().ping())"

    with ManagedProcess([sys.executable, "-c", OWNER.format(rest=fork_and_end)]) as owner:
        owner.wait_log("^True$")


def test_run_as_a_module_it_prints_its_url_and_ends_on_term() -> None:
    with ManagedProcess([sys.executable, "-m", "celery_delayq.embedded"]) as command:
        url = command.wait_log(r"^redis://127\.0\.0\.1:\d+/0$")[0]
        with Connection(url) as connection:
            connection.ensure_connection(max_retries=1)

        assert command.stop() == 0


@pytest.mark.full
def test_run_as_a_module_it_runs_a_cluster_on_the_given_ports() -> None:
    first = free_port()
    while not all(map(is_free, range(first, first + 3))):
        first = free_port()
    args = ["--cluster", "--port", str(first)]
    with ManagedProcess([sys.executable, "-m", "celery_delayq.embedded", *args]) as command:
        url = command.wait_log(r"^for delayed tasks: (delayq\+rediscluster://.*)$")[1]
        assert re.findall(r":(\d+)/", url) == [str(first + number) for number in range(3)]
        with Connection(url) as connection:
            connection.ensure_connection(max_retries=1)

        assert command.stop() == 0


@pytest.mark.full
@pytest.mark.rabbitmq
def test_run_as_a_module_it_runs_rabbitmq_on_the_given_ports() -> None:
    need_rabbitmq()
    ports = free_port(), free_port()
    args = ["--rabbitmq", "--port", str(ports[0]), "--api-port", str(ports[1])]
    with ManagedProcess([sys.executable, "-m", "celery_delayq.embedded", *args]) as command:
        url = command.wait_log(r"^for delayed tasks: (delayq\+amqp://.*)$")[1]
        api = command.wait_log(r"^management: (http://.*)$")[1]
        assert f":{ports[0]}/" in url
        assert f":{ports[1]}/" in api
        with Connection(url) as connection:
            connection.ensure_connection(max_retries=1)

        assert command.stop() == 0


@pytest.mark.parametrize(
    ("args", "code", "error"),
    [
        (["--executable", "absent"], 1, "'absent' is not a program that can be run"),
        (["--cluster", "--data-dir", "x"], 2, "--data-dir is for Redis, not a cluster"),
        (["--rabbitmq", "--executable", "x"], 2, "--executable is for Redis and a cluster, not Ra"),
        (["--api-port", "1"], 2, "--api-port is for RabbitMQ, not Redis"),
        (["--cluster", "--rabbitmq"], 2, "not allowed with argument --cluster"),
    ],
)
def test_run_as_a_module_it_says_what_is_wrong_in_one_line(
    args: list[str], code: int, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        found = main(args)
    except SystemExit as exc:
        found = int(exc.code or 0)

    assert found == code
    assert error in capsys.readouterr().err.strip().splitlines()[-1]
