"""Each exception is raised by its documented cause, with a sentence that says what is wrong.

The list of exceptions is that of ``celery_delayq.errors``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.schedules import BaseSchedule

import celery_delayq
from celery_delayq import DelayQ, Limit, errors
from celery_delayq.admin.rabbitmq import topology
from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.embedded.rabbitmq import SERVER_VARIABLE, find_rabbitmq_server
from celery_delayq.errors import DelayQError
from celery_delayq.model.envelope import Record
from celery_delayq.testing import drain
from celery_delayq.testing.servers import new_server
from celery_delayq.webhook import Webhook, deliver, verify
from tests.integration.conftest import MakeApp
from tests.support.rabbitmq import RabbitMQScene
from tests.support.receiver import Receiver
from tests.support.stopped import stopped

#: All exceptions, by name.
ERRORS: dict[str, type[Exception]] = {
    name: each
    for name, each in vars(errors).items()
    if isinstance(each, type) and each.__module__ == errors.__name__
}
FAR = "2100-01-01T00:00:00+00:00"
ONCE = {"max_retries": 0}
WEBHOOK = Webhook(["127.0.0.1:*"], allow_http=True, allow_networks=["127.0.0.1"], timeout=5)


def is_even(number: int) -> bool:
    """Return whether a number is even."""
    return number % 2 == 0


class Causes:
    """One method for each exception, with its name. Each raises the exception."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request

    def _get(self, fixture: str) -> Any:
        return self._request.getfixturevalue(fixture)

    def _app(self, **conf: Any) -> Celery:
        make_app: MakeApp = self._get("make_app")
        return make_app(**conf)

    def _delayq(self, **conf: Any) -> DelayQ:
        return DelayQ.of(self._app(**conf))

    def _send(self, app: Celery | None = None, **options: Any) -> Any:
        """Send a task that is not tried again; by default it is due in the far future."""
        options = {"eta": FAR, "retry_policy": ONCE, **options}
        return (app or self._app()).tasks["tasks.add"].apply_async((1, 2), **options)

    def _with_settings(self, **settings: Any) -> Celery:
        return self._app(broker_transport_options={"delayq": settings})

    def _server(self, **options: Any) -> EmbeddedRedis:
        server: EmbeddedRedis = self._get("delayq_redis_factory")(**options)
        return server

    def _rabbitmq(self, **settings: Any) -> RabbitMQScene:
        scene: RabbitMQScene = self._get("new_rabbitmq")(**settings)
        return scene

    # -- calls and settings -------------------------------------------------------------------

    def config_error(self) -> None:
        self._send(self._with_settings(dispach=1))

    def not_supported(self) -> None:
        self._delayq(broker="delayq+amqp://127.0.0.1:1//").list()

    def invalid_eta(self) -> None:
        self._send(eta=None, countdown=float("nan"))

    def invalid_option(self) -> None:
        self._send(time_limit=-1)

    def invalid_filter(self) -> None:
        self._delayq().count(task="")

    def invalid_cursor(self) -> None:
        self._delayq().list(cursor="nonsense")

    def invalid_unique(self) -> None:
        self._send(unique_key="order:{order_id}")

    def unique_conflict(self) -> None:
        app = self._app()
        for _ in range(2):
            self._send(app, unique_key="order", on_conflict="error")

    def invalid_limit(self) -> None:
        Limit("payments", concurrency=0)

    def invalid_retry(self) -> None:
        self._send(retry_intervals=[-1.0])

    def invalid_context(self) -> None:
        with self._delayq().context(user=object()):
            pass

    def task_returned_false(self) -> None:
        app = self._app()
        app.task(name="shop.is_even", shared=False, false_is_failure=True)(is_even)
        task = app.tasks["shop.is_even"]
        task.push_request(id="a", called_directly=False)
        task.run(1)

    # -- periodic entries ---------------------------------------------------------------------

    def periodic_exists(self) -> None:
        periodic = self._delayq().periodic
        for _ in range(2):
            periodic.add("hourly", 3600, "tasks.add", (1, 2))

    def periodic_unknown(self) -> None:
        self._delayq().periodic.resume("hourly")

    def invalid_schedule(self) -> None:
        self._delayq().periodic.add("hourly", -3600, "tasks.add")

    def schedule_not_importable(self) -> None:
        local = type("local", (BaseSchedule,), {"__qualname__": "inside.local"})
        self._delayq().periodic.add("hourly", local(), "tasks.add")

    # -- Redis --------------------------------------------------------------------------------

    def unsupported_server(self) -> None:
        url = self._server(options={"rename-command": 'EVAL ""'}).url_for("delayq+redis")
        self._send(self._app(broker=url))

    def earlier_layout(self) -> None:
        self._get("redis").zadd("delayq:reaping", {"celery": 5})
        self._delayq().count()

    def record_error(self) -> None:
        redis = self._get("redis")
        self._send(task_id="a")
        record = Record.unpack(redis.hget("{celery}:entries", "a"))
        message = json.dumps({**json.loads(record.message), "body": "?"}).encode()
        redis.hset("{celery}:entries", "a", record._replace(message=message).pack())
        self._delayq().update("a", args=[3, 4])

    def command_refused(self) -> None:
        self._get("redis").set("delayq:periodic", "no hash")
        self._delayq().periodic.pause("hourly")

    def broker_unavailable(self) -> None:
        self._delayq(broker="delayq+redis://127.0.0.1:1/0").count()

    def broker_timeout(self) -> None:
        server = self._server()
        options = {"socket_timeout": 0.2}
        broker = server.url_for("delayq+redis")
        delayq = self._delayq(broker=broker, broker_transport_options=options)
        delayq.count()
        with stopped(server.pid):
            delayq.count()

    def not_allowed(self) -> None:
        server = self._server()
        with server.client() as client:
            rules = ("on", ">secret", "~*", "&*", "+@all", "-zadd")
            client.execute_command("ACL", "SETUSER", "app", *rules)
        self._send(self._app(broker=f"delayq+redis://app:secret@127.0.0.1:{server.port}/0"))

    def store_full(self) -> None:
        app = self._app()
        self._send(app)
        self._get("redis").config_set("maxmemory", 1)
        self._send(app)

    def queue_full(self) -> None:
        app = self._with_settings(max_scheduled=1)
        for _ in range(2):
            self._send(app)

    def not_replicated(self) -> None:
        self._send(self._with_settings(wait_replicas=1, wait_timeout=0.1))

    # -- RabbitMQ -----------------------------------------------------------------------------

    def broker_blocked(self) -> None:
        server = self._get("delayq_rabbitmq_server")
        scene = self._rabbitmq()
        scene.send("a")
        server.control("set_vm_memory_high_watermark", "absolute", "1MB")
        try:
            while True:  # the alarm comes within seconds
                scene.send("b", confirm_timeout=1.0)
        finally:
            server.control("set_vm_memory_high_watermark", "absolute", "2GB")

    def no_queue(self) -> None:
        scene = self._rabbitmq()
        topology.apply(scene.app)
        scene.send("a", 60.0)
        with suppress(errors.BrokerNotEmpty):
            [*topology.delete(scene.app, settle=0)]
        scene.send("b", 60.0)

    def broker_not_empty(self) -> None:
        scene = self._rabbitmq()
        topology.apply(scene.app)
        scene.send("a", 60.0)
        [*topology.delete(scene.app, settle=0)]

    # -- files and databases ------------------------------------------------------------------

    def transfer_error(self) -> None:
        self._delayq().compat("/nowhere/schedule.jsonl")

    def invalid_place(self) -> None:
        self._delayq().export_to("mysql://127.0.0.1/shop")

    # -- webhooks -----------------------------------------------------------------------------

    def invalid_webhook(self) -> None:
        deliver(WEBHOOK, "https://elsewhere.example/", {}, None, "id")

    def delivery_failed(self) -> None:
        with Receiver(503) as receiver:
            deliver(WEBHOOK, receiver.url(), {}, None, "id")

    def delivery_refused(self) -> None:
        with Receiver(410) as receiver:
            deliver(WEBHOOK, receiver.url(), {}, None, "id")

    def invalid_signature(self) -> None:
        verify("secret", {}, b"{}")

    # -- private servers and tests ------------------------------------------------------------

    def travel_error(self) -> None:
        drain()

    def server_not_found(self) -> None:
        self._get("monkeypatch").setenv(SERVER_VARIABLE, "/nowhere/rabbitmq-server")
        find_rabbitmq_server()

    def redis_server_not_found(self) -> None:
        EmbeddedRedis(executable="/nowhere/redis-server")

    def embedded_server_error(self) -> None:
        self._get("delayq_rabbitmq_server").ask("GET", "vhosts/nowhere")

    def embedded_redis_error(self) -> None:
        with new_server(options={"maxmemory-policy": "unknown"}):
            pass


#: Causes that need a RabbitMQ.
ON_RABBITMQ = {"BrokerBlocked", "NoQueue", "BrokerNotEmpty", "EmbeddedServerError"}


def params() -> Iterator[Any]:
    for name in sorted(ERRORS.keys() - {DelayQError.__name__}):
        marks = (pytest.mark.full, pytest.mark.rabbitmq) if name in ON_RABBITMQ else ()
        yield pytest.param(name, marks=marks)


def public_class(exc: Exception) -> type[Exception]:
    """Return the exception of ``celery_delayq.errors`` that an error is; it may be a subclass."""
    return next(each for each in type(exc).__mro__ if each in ERRORS.values())


@pytest.mark.parametrize("name", [*params()])
def test_an_exception_is_raised_by_its_cause(name: str, request: pytest.FixtureRequest) -> None:
    cause = getattr(Causes(request), re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower())

    with pytest.raises(DelayQError) as caught:
        cause()

    assert public_class(caught.value) is ERRORS[name], repr(caught.value)
    # The log of a server may follow.
    assert len(str(caught.value).partition("\n")[0].split()) >= 3, str(caught.value)


def test_the_base_class_is_raised_by_nothing() -> None:
    """Each error has a class of its own, which a program can catch."""
    modules = Path(celery_delayq.__file__).parent.rglob("*.py")
    assert not [path for path in modules if "raise DelayQError(" in path.read_text("utf-8")]
    assert all(issubclass(each, DelayQError) and each.__doc__ for each in ERRORS.values())
