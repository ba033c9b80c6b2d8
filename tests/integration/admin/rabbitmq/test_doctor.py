"""``delayq doctor`` on RabbitMQ: each prepared fault is found, and nothing on a good set-up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from typing import Any

import pytest
from celery import Celery
from kombu import Connection, Queue

from celery_delayq import DelayQ
from celery_delayq.admin.doctor import RABBITMQ_CHECKS
from celery_delayq.embedded.rabbitmq import EmbeddedRabbitMQ
from tests.integration.conftest import MakeApp
from tests.integration.transport.amqp.test_blocked import low_on_memory
from tests.support.brokers import close_connections
from tests.support.cli import CommandLine

pytestmark = pytest.mark.full


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def new_app(make_app: MakeApp, broker: str, **delayq: Any) -> Celery:
    app = make_app(extension=False, broker=broker, broker_transport_options={"delayq": delayq})
    app.conf.task_default_queue_type = "quorum"
    DelayQ(app, at_least_once=True)
    return app


def wrong(app: Celery) -> dict[str, str]:
    """Return what is found to be wrong, by check."""
    ran = CommandLine(app)("doctor", "--json")
    found: list[Mapping[str, str]] = ran.json["findings"]
    told = {each["check"]: each["what"] for each in found if each["level"] != "cannot tell"}
    assert ran.code == bool(told)
    return told


def test_nothing_is_wrong_with_a_good_set_up(
    make_app: MakeApp, delayq_rabbitmq: str, delayq_rabbitmq_server: EmbeddedRabbitMQ
) -> None:
    app = new_app(make_app, delayq_rabbitmq)
    app.send_task("tasks.add", (1, 1), countdown=60)

    ran = CommandLine(app)("doctor")

    assert (ran.code, ran.err) == (0, "")
    assert ran.out.endswith(f"{len(RABBITMQ_CHECKS) + 2} checks: nothing wrong, 2 cannot be told\n")
    assert "cannot tell: after a restart: dead_letter_worker_publisher_confirm_timeout" in ran.out
    version = delayq_rabbitmq_server.ask("GET", "overview")["rabbitmq_version"]
    assert f"RabbitMQ {version}" in ran.out


def test_a_connection_that_is_lost_meanwhile_is_a_fault(
    make_app: MakeApp,
    delayq_rabbitmq: str,
    delayq_rabbitmq_server: EmbeddedRabbitMQ,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vhost = delayq_rabbitmq.rpartition("/")[2]

    def lose(_app: Celery, channel: Any) -> Iterator[Any]:
        close_connections(delayq_rabbitmq_server, vhost)
        channel.basic_qos(0, 0, False)
        yield

    monkeypatch.setitem(RABBITMQ_CHECKS, "latency", lose)

    found = wrong(new_app(make_app, delayq_rabbitmq))

    assert {"latency", "queues", "unroutable"} <= found.keys()
    assert "connection to RabbitMQ was lost" in found["unroutable"]


def test_an_alarm_is_found(
    make_app: MakeApp, delayq_rabbitmq: str, delayq_rabbitmq_server: EmbeddedRabbitMQ
) -> None:
    app = new_app(make_app, delayq_rabbitmq)
    with low_on_memory(delayq_rabbitmq_server):
        found = wrong(app)

    assert found.keys() == {"alarms"}
    assert "low on memory" in found["alarms"]


def test_queues_of_delays_of_other_settings_are_found(
    make_app: MakeApp, delayq_rabbitmq: str
) -> None:
    new_app(make_app, delayq_rabbitmq).send_task("tasks.add", (1, 1), countdown=60)

    assert wrong(new_app(make_app, delayq_rabbitmq, max_length=7)).keys() == {"delays"}


def test_missing_queues_of_delays_are_found_where_nobody_may_declare_them(
    make_app: MakeApp, delayq_rabbitmq: str
) -> None:
    assert wrong(new_app(make_app, delayq_rabbitmq, declare=False)).keys() == {"delays"}


def test_a_classic_queue_is_found(make_app: MakeApp, delayq_rabbitmq: str) -> None:
    app = new_app(make_app, delayq_rabbitmq)
    app.conf.task_default_queue_type = "classic"

    assert "is no quorum queue" in wrong(app)["settings"]


def test_a_queue_whose_node_is_away_is_found(make_app: MakeApp, stack: ExitStack) -> None:
    cluster = stack.enter_context(closing(EmbeddedRabbitMQ(nodes=2).start()))
    with Connection(cluster.url("amqp", number=1)) as there:
        Queue("celery", queue_arguments={"x-queue-type": "classic"})(there).declare()
    app = new_app(make_app, cluster.url("delayq+amqp"))

    cluster.kill(1)

    assert "'celery' in vhost '/'" in wrong(app)["queues"]
