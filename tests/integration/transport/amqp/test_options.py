"""The settings of delays on RabbitMQ, and accounts with few rights."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from kombu import Queue

from celery_delayq.admin.rabbitmq import topology
from celery_delayq.embedded.rabbitmq import EmbeddedRabbitMQ
from celery_delayq.errors import ConfigError, InvalidETA, NotAllowed, QueueFull
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.conftest import NewRabbitMQ
from tests.support import TIMEOUT
from tests.support.rabbitmq import RabbitMQScene
from tests.support.scene import StartWorker


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
    dues: dict[str, float] = {}

    def is_full() -> bool:
        id = f"{len(dues)}"
        try:
            dues[id] = scene.send(id, 6.4)  # all wait in the same queue
        except QueueFull:
            return True
        return False

    # A quorum queue tells its publishers a moment after it is full.
    wait_until(is_full, TIMEOUT, "it is full", interval=0)
    assert len(dues) >= 10
    # Then it may let a few in all the same.
    refused = sum(is_full() for _ in range(20))
    assert refused > 10 or time.time() > dues["0"]

    came = scene.receive("orders", len(dues))
    assert came.keys() == dues.keys()
    assert all(came[id] >= due for id, due in dues.items())


def test_a_delay_queue_with_other_arguments_is_refused(new_rabbitmq: NewRabbitMQ) -> None:
    new_rabbitmq().send("a")

    with pytest.raises(ConfigError, match=r"inequivalent arg 'x-max-length'.* another prefix"):
        new_rabbitmq(max_length=5).send("b")


# -- rights


def _queue() -> Queue:
    return Queue("orders", no_declare=True)


def _documented() -> dict[str, list[str]]:
    """Return the rights that the docs give to each account, in the order of RabbitMQ."""
    text = (Path(__file__).parents[4] / "docs" / "rabbitmq.md").read_text()
    rows = re.findall(r"^\| (.+?) \| `(.+?)` \| `(.+?)` \| `(.+?)` \|$", text, re.MULTILINE)
    return {name: [each.replace(r"\|", "|") for each in rights] for name, *rights in rows}


def _fewer(rights: list[str]) -> Iterator[list[str]]:
    """Yield the same without each name."""
    for place, pattern in enumerate(rights):
        names = pattern.removeprefix("^").removesuffix("$").strip("()").split("|")
        for name in filter(None, names):
            left = "|".join(each for each in names if each != name)
            yield [*rights[:place], f"^({left})$", *rights[place + 1 :]]


def _send_both(producer: RabbitMQScene, declare: bool) -> None:
    options = {} if declare else {"queue": _queue()}
    producer.app.send_task("shop.work", task_id="now", **options)
    producer.send("later", 0.5, **options)


@pytest.mark.parametrize("declare", [True, False])
def test_a_producer_needs_the_documented_rights_and_each_of_them(
    new_rabbitmq: NewRabbitMQ,
    delayq_rabbitmq_server: EmbeddedRabbitMQ,
    vhost: str,
    account: Account,
    delayq_rabbitmq: str,
    declare: bool,
) -> None:
    rights = _documented()["producer" if declare else "producer, `declare=False`"]
    owner = new_rabbitmq()
    if not declare:
        owner.app.conf.task_queues = [Queue("orders")]
        topology.apply(owner.app)
    account.allow(*rights)

    _send_both(new_rabbitmq(account.url(delayq_rabbitmq), declare=declare), declare)

    assert owner.receive("orders", 2).keys() == {"now", "later"}
    for fewer in _fewer(rights):
        # Another one: connections of the former are pooled.
        less = Account(delayq_rabbitmq_server, vhost)
        less.allow(*fewer)
        with pytest.raises(NotAllowed, match=r"access to .* refused for user .*docs/rabbitmq.md"):
            _send_both(new_rabbitmq(less.url(delayq_rabbitmq), declare=declare), declare)


@pytest.mark.parametrize("declare", [True, False])
def test_a_worker_needs_the_documented_rights(
    new_rabbitmq: NewRabbitMQ,
    account: Account,
    delayq_rabbitmq: str,
    delayq_redis: RedisUnderTest,
    delayq_worker: StartWorker,
    declare: bool,
) -> None:
    rights = _documented()["worker" if declare else "worker, `declare=False`"]
    owner = new_rabbitmq()
    owner.app.conf.task_queues = [Queue("orders")]
    if not declare:
        topology.apply(owner.app)
    account.allow(*rights)
    # With gossip and mingle.
    settings = {
        "task_default_queue": "orders",
        "broker_transport_options": {"delayq": {"declare": declare}},
        "undeclared_queue": None if declare else "orders",
    }
    worker = delayq_worker(
        "tests.apps.header_tasks:app",
        broker_url=account.url(delayq_rabbitmq),
        env={"APP_SETTINGS": json.dumps(settings)},
        pool="solo",
    )

    owner.app.send_task("header.fails", task_id="fails")
    owner.app.send_task("header.ok", task_id="later", countdown=0.3)

    wait_until(lambda: owner.app._delayq.count_dead() == 1, TIMEOUT, lambda: worker.log)
    wait_until(lambda: delayq_redis.client.llen("ran") == 2, TIMEOUT, lambda: worker.log)
    assert owner.app.control.ping(timeout=TIMEOUT, limit=1)
    assert "refused for user" not in worker.log


def test_a_worker_that_may_not_store_dead_letters_says_so_and_ends(
    new_rabbitmq: NewRabbitMQ,
    account: Account,
    delayq_rabbitmq: str,
    delayq_worker: StartWorker,
) -> None:
    account.allow("^(?!delayq).*$", ".*", ".*")
    url = account.url(delayq_rabbitmq)

    worker = delayq_worker("tests.apps.header_tasks:app", broker_url=url, wait_ready=False)

    assert worker.wait() != 0
    assert "access to queue 'delayq.dead_letters'" in worker.log
    assert "docs/rabbitmq.md lists the rights" in worker.log


@pytest.mark.parametrize("pool", ["solo", "prefork", "threads"])
def test_a_worker_that_lost_the_right_to_store_dead_letters_goes_on_and_stores_them_later(
    new_rabbitmq: NewRabbitMQ,
    account: Account,
    delayq_rabbitmq: str,
    delayq_redis: RedisUnderTest,
    delayq_worker: StartWorker,
    pool: str,
) -> None:
    owner, ids = new_rabbitmq(), {"fails", "unknown"}
    account.allow(".*", ".*", ".*")
    settings = {"task_default_queue": "orders"}
    worker = delayq_worker(
        "tests.apps.header_tasks:app",
        broker_url=account.url(delayq_rabbitmq),
        env={"APP_SETTINGS": json.dumps(settings)},
        pool=pool,
    )

    account.allow("^(?!delayq).*$", ".*", ".*")
    owner.channel.queue_delete("delayq.dead_letters")
    for id in ids:
        owner.app.send_task(f"header.{id}", task_id=id)
    says = "RabbitMQ takes no dead letter.*access to queue 'delayq.dead_letters'.*rights"
    wait_until(lambda: re.search(says, worker.log), TIMEOUT, lambda: worker.log)
    owner.app.send_task("header.ok", task_id="next")
    wait_until(lambda: delayq_redis.client.llen("ran") == 2, TIMEOUT, lambda: worker.log)
    account.allow(".*", ".*", ".*")

    delayq = owner.app._delayq
    wait_until(lambda: delayq.count_dead() == len(ids), TIMEOUT, lambda: worker.log)
    assert {each.id for each in delayq.dead_letters()} == ids
    assert sorted(delayq_redis.client.lrange("ran", 0, -1)) == [b"fails", b"next"]
    wait_until(lambda: "storing of dead letters resumed" in worker.log, TIMEOUT, "it is logged")
    worker.term()
    assert worker.wait() == 0
    assert owner.channel.queue_declare("orders", passive=True).message_count == 0


@pytest.mark.parametrize(
    ("rights", "lacking"),
    [
        (("^$", ".*", ".*"), "delayq.exit"),
        ((r"^delayq\.", r"^delayq\.", ".*"), "orders"),
        ((r"^delayq\.", ".*", "^$"), "delayq.unroutable"),
    ],
    ids=["configure", "write", "read"],
)
def test_the_error_names_the_right_that_an_account_lacks(
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
