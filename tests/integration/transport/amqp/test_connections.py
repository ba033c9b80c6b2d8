"""TLS, several URLs, and brokers that are not the right one."""

from __future__ import annotations

import json
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from urllib.parse import urlsplit

import amqp
import pytest
from amqp.exceptions import NotFound, RecoverableConnectionError, ResourceLocked
from celery import Celery
from kombu.exceptions import OperationalError

from celery_delayq.embedded.ports import HOST, free_port
from celery_delayq.embedded.rabbitmq import EmbeddedRabbitMQ
from celery_delayq.errors import NotAllowed, UnsupportedServer
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.apps.retry_tasks import RetryScene, tasks_of
from tests.support import TIMEOUT
from tests.support.proxy_amqp import AmqpProxy
from tests.support.rabbitmq import RabbitMQScene
from tests.support.scene import StartWorker
from tests.support.tls import Certificates, make_certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls") / "certificates")


@pytest.fixture(scope="module")
def tls_url(certificates: Certificates) -> Iterator[str]:
    """URL of a broker that wants TLS, and a certificate of who connects."""
    port = free_port()
    config = {
        "listeners.ssl.1": f"{HOST}:{port}",
        "ssl_options.cacertfile": str(certificates.authority),
        "ssl_options.certfile": str(certificates.certificate),
        "ssl_options.keyfile": str(certificates.key),
        "ssl_options.verify": "verify_peer",
        "ssl_options.fail_if_no_peer_cert": "true",
    }
    with EmbeddedRabbitMQ(config=config):
        yield f"delayq+amqps://guest:guest@{HOST}:{port}//"


@pytest.mark.full
@pytest.mark.parametrize("where", ["setting", pytest.param("url", marks=pytest.mark.nightly)])
def test_a_delayed_task_goes_over_tls(tls_url: str, certificates: Certificates, where: str) -> None:
    files = {
        "ca_certs": str(certificates.authority),
        "certfile": str(certificates.certificate),
        "keyfile": str(certificates.key),
    }
    query = "&".join(f"ssl_{name}={value}" for name, value in files.items())
    url = f"{tls_url}?{query}&ssl_cert_reqs=required" if where == "url" else tls_url
    use = None if where == "url" else {**files, "cert_reqs": ssl.CERT_REQUIRED}
    with RabbitMQScene(url, broker_use_ssl=use) as scene:
        due = scene.send("a", 0.3)

        assert scene.receive("orders")["a"] >= due


def test_the_second_url_is_tried_when_the_first_is_away(delayq_rabbitmq: str) -> None:
    away = f"delayq+amqp://guest:guest@{HOST}:{free_port()}//"
    with RabbitMQScene(f"{away};{delayq_rabbitmq}") as scene:
        due = scene.send("a", 0.3)

        assert scene.receive("orders")["a"] >= due
        assert scene.app._delayq.stats().as_dict()["scheduled"] == 0


def test_the_second_url_is_tried_when_the_virtual_host_is_down_at_the_first(
    delayq_rabbitmq: str, delayq_rabbitmq_server: EmbeddedRabbitMQ
) -> None:
    """A node of a cluster may be up without it; here it is another virtual host."""
    down = delayq_rabbitmq_server.new_vhost()
    stop = f'rabbit_vhost_sup_sup:stop_and_delete_vhost(<<"{down}">>)'
    delayq_rabbitmq_server.evaluate(stop)
    first = delayq_rabbitmq_server.url("delayq+amqp", vhost=down)

    with RabbitMQScene(f"{first};{delayq_rabbitmq}") as scene:
        due = scene.send("a", 0.3)

        assert scene.receive("orders")["a"] >= due
    delayq_rabbitmq_server.delete_vhost(down)


def test_a_temporary_queue_that_goes_before_it_is_bound_is_a_lost_connection(
    delayq_rabbitmq: str,
) -> None:
    """As those of a lost node may; a worker ended by it."""
    with RabbitMQScene(delayq_rabbitmq) as scene:
        channel = scene.channel
        for options in ({"auto_delete": True}, {"auto_delete": False}):
            channel.queue_declare("mailbox", **options)
            channel.connection.channel().queue_delete("mailbox")
            lost = RecoverableConnectionError if options["auto_delete"] else NotFound
            with pytest.raises(lost, match="no queue 'mailbox'"):
                channel.queue_bind("mailbox", "amq.direct", "mailbox")
            channel = scene.connection.channel()


# -- an exclusive queue that another connection has


@contextmanager
def _exclusive_queue(url: str, name: str) -> Iterator[None]:
    """Have another connection declare an exclusive queue as soon as nobody else has the queue."""
    parts = urlsplit(url)
    with amqp.Connection(f"{HOST}:{parts.port}", virtual_host=parts.path[1:]) as other:

        def declare() -> bool:
            with suppress(ResourceLocked):
                other.channel().queue_declare(name, exclusive=True)
                return True
            return False

        wait_until(declare, TIMEOUT, f"{name} is not locked")
        yield


def test_an_exclusive_queue_is_a_lost_connection_only_where_this_process_declared_it_before(
    delayq_rabbitmq: str,
) -> None:
    with RabbitMQScene(delayq_rabbitmq) as scene:
        scene.channel.queue_declare("mailbox", exclusive=True)
        scene.channel.queue_delete("mailbox")
        for name, error in (("mailbox", RecoverableConnectionError), ("other", ResourceLocked)):
            with (
                _exclusive_queue(delayq_rabbitmq, name),
                pytest.raises(error, match=f"exclusive access to locked queue '{name}'"),
            ):
                scene.connection.channel().queue_declare(name, exclusive=True)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_worker_whose_mailbox_is_still_locked_connects_again_until_it_is_free(
    pool: str,
    app: Celery,
    delayq_rabbitmq: str,
    delayq_redis: RedisUnderTest,
    port: int,
    delayq_worker: StartWorker,
) -> None:
    """RabbitMQ may need a while to notice that a connection, or a node of a cluster, is gone."""
    with AmqpProxy(port) as proxy:
        through = delayq_rabbitmq.replace(f":{port}", f":{proxy.port}")
        env = {
            "APP_SETTINGS": json.dumps({"control_queue_exclusive": True})
        }  # Celery 5.7's default
        worker = delayq_worker("tests.apps.retry_tasks:app", broker_url=through, pool=pool, env=env)
        proxy.refuse()
        with _exclusive_queue(delayq_rabbitmq, f"{worker.hostname}.celery.pidbox"):
            proxy.accept()
            worker.wait_log("exclusive access to locked queue", TIMEOUT)

        scene = RetryScene(delayq_redis, tasks_of(app), delayq_worker)
        app.tasks["plain"].apply_async((["done"],), task_id="next")
        wait_until(lambda: "next" in scene.runs("id"), TIMEOUT, "the worker goes on")
        assert app.control.ping([worker.hostname], timeout=TIMEOUT, limit=1)
        assert "Unrecoverable" not in worker.log


# -- the wrong broker, or the wrong account


@contextmanager
def _saying(port: int, old: bytes, new: bytes) -> Iterator[int]:
    """Let a server say other words of the same length; yield the port to connect to."""
    server = socket.create_server((HOST, 0))

    def pass_on(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data.replace(old, new))
            target.shutdown(socket.SHUT_WR)

    def serve() -> None:
        with suppress(OSError):
            while True:
                client, _ = server.accept()
                real = socket.create_connection((HOST, port))
                for ends in ((client, real), (real, client)):
                    threading.Thread(target=pass_on, args=ends, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    with server:
        yield server.getsockname()[1]


@pytest.fixture
def port(delayq_rabbitmq: str) -> int:
    return int(delayq_rabbitmq.rpartition(":")[2].partition("/")[0])


@pytest.mark.parametrize("case", ["password", "virtual host", "too old", "no RabbitMQ", "Redis"])
def test_a_broker_that_does_not_do_is_an_error_for_producers_and_workers(
    delayq_rabbitmq: str,
    delayq_rabbitmq_server: EmbeddedRabbitMQ,
    delayq_redis: RedisUnderTest,
    delayq_worker: StartWorker,
    port: int,
    case: str,
) -> None:
    version = str(delayq_rabbitmq_server.ask("GET", "overview")["rabbitmq_version"])
    older = f"3.0{version[3:]}"  # as long as it
    error: type[Exception] = UnsupportedServer
    with ExitStack() as stack:
        if case == "password":
            url, error = delayq_rabbitmq.replace(":guest@", ":wrong@"), NotAllowed
            says = "Login was refused .* check user, password"
        elif case == "virtual host":
            url, error = delayq_rabbitmq + "none", NotAllowed
            says = "vhost test-.*none not found; check user, password, virtual host"
        elif case == "Redis":
            url = delayq_rabbitmq.replace(f":{port}", f":{delayq_redis.port}")
            error, says = OperationalError, "."
        else:
            words = (version, older) if case == "too old" else ("RabbitMQ", "QuasarMQ")
            through = stack.enter_context(_saying(port, *(each.encode() for each in words)))
            url = delayq_rabbitmq.replace(f":{port}", f":{through}")
            says = "the broker is (QuasarMQ|RabbitMQ 3.0).*needs RabbitMQ 3.10 or newer"
        scene = stack.enter_context(RabbitMQScene(url))

        with pytest.raises(error, match=says) as refused:
            scene.send("a")

        assert "guest" not in str(refused.value).replace("guest:**", "")
        if case != "Redis":  # which may be a broker that is being started
            worker = delayq_worker("tests.apps.header_tasks:app", broker_url=url, wait_ready=False)
            assert worker.wait() != 0
            assert re.search(f"the worker cannot run: .*{says}", worker.log)
            assert "Traceback" not in worker.log


# -- a channel that RabbitMQ closes


@contextmanager
def _consumer_timeout(server: EmbeddedRabbitMQ, ms: int) -> Iterator[None]:
    """Have RabbitMQ close channels opened from now on that hold a message for so long."""

    def set_to(timeout: int, look: int) -> None:
        for name, value in (("consumer_timeout", timeout), ("channel_tick_interval", look)):
            server.evaluate(f"application:set_env(rabbit, {name}, {value})")

    set_to(ms, 200)
    try:
        yield
    finally:
        set_to(1_800_000, 60_000)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_worker_that_holds_a_message_for_too_long_connects_again(
    pool: str,
    app: Celery,
    delayq_rabbitmq_server: EmbeddedRabbitMQ,
    delayq_redis: RedisUnderTest,
    delayq_worker: StartWorker,
) -> None:
    scene = RetryScene(delayq_redis, tasks_of(app), delayq_worker)
    app.tasks["plain"].apply_async((["wait"],), task_id="long")
    with _consumer_timeout(delayq_rabbitmq_server, 1000):
        worker = scene.start(pool)
        wait_until(lambda: scene.runs("id").count("long") >= 2, TIMEOUT, "it was sent again")

    scene.open("long")
    app.tasks["plain"].apply_async((["done"],), task_id="next")
    wait_until(lambda: "next" in scene.runs("id"), TIMEOUT, "the worker goes on")
    assert worker.running
    assert "Unrecoverable" not in worker.log
