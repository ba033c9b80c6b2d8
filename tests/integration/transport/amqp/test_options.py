"""The settings of delays on RabbitMQ, and accounts with few rights."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from kombu import Queue

from celery_delayq.embedded.rabbitmq import EmbeddedRabbitMQ
from celery_delayq.errors import ConfigError, InvalidETA, NotAllowed, NotSupported, QueueFull
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.conftest import NewRabbitMQ
from tests.support.rabbitmq import RabbitMQScene


@pytest.fixture
def vhost(delayq_rabbitmq: str) -> str:
    return urlsplit(delayq_rabbitmq).path[1:]


class Account:
    """An account of the broker that has few rights."""

    def __init__(self, server: EmbeddedRabbitMQ, vhost: str) -> None:
        self._server, self._vhost = server, vhost
        self.name = f"user-{uuid4().hex[:8]}"
        server.ask("PUT", f"users/{self.name}", {"password": "secret", "tags": ""})

    def allow(self, configure: str, write: str, read: str) -> None:
        rights = {"configure": configure, "write": write, "read": read}
        self._server.ask("PUT", f"permissions/{self._vhost}/{self.name}", rights)

    def url(self, url: str) -> str:
        return url.replace("guest:guest@", f"{self.name}:secret@")


@pytest.fixture
def account(delayq_rabbitmq_server: EmbeddedRabbitMQ, vhost: str) -> Account:
    return Account(delayq_rabbitmq_server, vhost)


@pytest.mark.parametrize(
    "settings",
    [
        {"unit": 0.2},
        {"prefix": "shop.delays"},
        {"queue_type": "classic"},
        {"max_length": 1000},
        {"max_delay": 2.0},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_with_each_setting_tasks_arrive_when_they_are_due(
    new_rabbitmq: NewRabbitMQ, settings: dict[str, Any]
) -> None:
    scene = new_rabbitmq(**settings)
    dues = {f"{n}": scene.send(f"{n}", delay) for n, delay in enumerate([0.01, 0.3, 1.0])}

    came = scene.receive("orders", len(dues))

    assert {id for id, at in came.items() if at < dues[id]} == set()


def test_a_delay_of_more_than_max_delay_is_refused(new_rabbitmq: NewRabbitMQ) -> None:
    with pytest.raises(InvalidETA, match="a delay of 3 s is longer than max_delay, which is 2 s"):
        new_rabbitmq(max_delay=2.0).send("a", 3)


def test_what_does_not_fit_into_a_delay_queue_is_refused_and_the_rest_arrives(
    new_rabbitmq: NewRabbitMQ,
) -> None:
    scene = new_rabbitmq(max_length=10)
    sent, refused = set(), 0
    for n in range(40):
        try:
            scene.send(f"{n}", 1.6)  # all wait in the same queue
            sent.add(f"{n}")
        except QueueFull:
            refused += 1

    assert refused > 20
    assert scene.receive("orders", len(sent)).keys() == sent


def test_a_delay_queue_with_other_arguments_is_refused(new_rabbitmq: NewRabbitMQ) -> None:
    new_rabbitmq().send("a")

    with pytest.raises(ConfigError, match=r"inequivalent arg 'x-max-length'.* another prefix"):
        new_rabbitmq(max_length=5).send("b")


def test_settings_of_rabbitmq_are_refused_on_redis(delayq_redis: RedisUnderTest) -> None:
    url = f"delayq+{delayq_redis.url}"
    scene = RabbitMQScene(url, {"max_length": 5, "declare": False})

    with pytest.raises(NotSupported, match=r"max_length, declare: only for .* delayq\+amqp://"):
        scene.send("a")


# -- rights


def _queue() -> Queue:
    return Queue("orders", no_declare=True)


def test_an_account_that_may_declare_nothing_sends_by_what_is_there(
    new_rabbitmq: NewRabbitMQ, account: Account, delayq_rabbitmq: str
) -> None:
    owner = new_rabbitmq()
    owner.send("a", 0.5)
    owner.receive("orders")
    account.allow("^$", r"^(delayq\.entry|orders|amq\.default)$", r"^delayq\.to_queue$")
    producer = new_rabbitmq(account.url(delayq_rabbitmq), declare=False)

    due = producer.send("b", 0.5, queue=_queue())

    assert owner.receive("orders")["b"] >= due
    with pytest.raises(ConfigError, match=r"no exchange 'delayq.level.3'.*topology --apply"):
        producer.send("c", 1638.4, queue=_queue())


@pytest.mark.parametrize(
    ("rights", "lacking"),
    [
        (("^$", ".*", ".*"), "delayq.entry"),
        ((r"^delayq\.", r"^delayq\.", ".*"), "orders"),
        ((r"^delayq\.", ".*", "^$"), "delayq.unroutable"),
    ],
    ids=["configure", "write", "read"],
)
def test_an_account_that_lacks_a_right_is_told_which(
    new_rabbitmq: NewRabbitMQ,
    account: Account,
    delayq_rabbitmq: str,
    rights: tuple[str, str, str],
    lacking: str,
) -> None:
    new_rabbitmq().app.send_task("shop.work")
    account.allow(*rights)
    producer = new_rabbitmq(account.url(delayq_rabbitmq))

    with pytest.raises(NotAllowed, match=rf"access to .* '{lacking}'.*docs/rabbitmq.md"):
        producer.send("a", 0.5, queue=_queue())


def test_a_producer_needs_no_more_than_these_rights(
    new_rabbitmq: NewRabbitMQ, account: Account, delayq_rabbitmq: str
) -> None:
    owner = new_rabbitmq()
    owner.app.send_task("shop.work", task_id="now")
    account.allow(r"^delayq\.", r"^(delayq\..*|orders|amq\.default)$", r"^delayq\.")
    producer = new_rabbitmq(account.url(delayq_rabbitmq))

    due = producer.send("later", 0.5, queue=_queue())
    producer.app.send_task("shop.work", task_id="soon", queue=_queue())

    came = owner.receive("orders", 3)
    assert came.keys() == {"now", "soon", "later"}
    assert due <= came["later"] < time.time()
