"""``topology`` and ``stats`` on RabbitMQ."""

from __future__ import annotations

from dataclasses import fields

import pytest
from kombu import Exchange, Queue

from celery_delayq.admin.rabbitmq import topology
from celery_delayq.admin.rabbitmq.broker import RabbitMQQueueStats, RabbitMQStats
from celery_delayq.admin.rabbitmq.topology import State
from celery_delayq.admin.stats import QueueStats, Stats
from celery_delayq.embedded.rabbitmq import EmbeddedRabbitMQ
from celery_delayq.errors import BrokerNotEmpty, ConfigError, NoQueue
from celery_delayq.testing import wait_until
from tests.integration.conftest import NewRabbitMQ
from tests.support import TIMEOUT
from tests.support.cli import CommandLine
from tests.support.rabbitmq import RabbitMQScene


@pytest.fixture
def scene(new_rabbitmq: NewRabbitMQ) -> RabbitMQScene:
    """An app with one queue by name and one behind a topic exchange."""
    scene = new_rabbitmq(max_delay=60.0)
    news = Queue("news", Exchange("news", "topic"), "news.#")
    scene.app.conf.task_queues = [Queue("orders"), news]
    return scene


def _states(scene: RabbitMQScene) -> set[State]:
    return {each.state for each in topology.check(scene.app)}


def test_all_is_declared_at_once_and_nothing_later(
    scene: RabbitMQScene, delayq_rabbitmq_server: EmbeddedRabbitMQ
) -> None:
    assert _states(scene) == {State.MISSING}

    topology.apply(scene.app)

    def queues() -> set[str]:
        vhost = scene.channel.connection.virtual_host
        return {each["name"] for each in delayq_rabbitmq_server.ask("GET", f"queues/{vhost}")}

    declared = queues()
    assert _states(scene) == {State.DECLARED}
    scene.send("a", 59.9)
    scene.send("b", 0.1, queue="news", routing_key="news.today")
    assert scene.receive("news").keys() == {"b"}
    assert queues() == declared


def test_another_declaration_is_found(scene: RabbitMQScene, new_rabbitmq: NewRabbitMQ) -> None:
    topology.apply(scene.app)
    other = new_rabbitmq(max_delay=60.0, max_length=5)

    different = [each for each in topology.check(other.app) if each.state is State.DIFFERENT]

    assert {each.name for each in different} == {
        f"delayq.delay.{level}.{digit}" for level in range(6) for digit in (1, 2, 3)
    }
    assert all("inequivalent arg 'x-max-length'" in each.reason for each in different)
    assert CommandLine(other.app)("topology", "--check").code == 1


def test_definitions_are_what_rabbitmq_imports(
    scene: RabbitMQScene, delayq_rabbitmq_server: EmbeddedRabbitMQ
) -> None:
    vhost = scene.channel.connection.virtual_host

    delayq_rabbitmq_server.ask("POST", f"definitions/{vhost}", topology.definitions(scene.app))

    assert _states(scene) == {State.DECLARED}
    due = scene.send("a", 0.5)
    assert scene.receive("orders")["a"] >= due


def test_it_is_removed_only_when_nothing_waits(
    scene: RabbitMQScene, new_rabbitmq: NewRabbitMQ
) -> None:
    topology.apply(scene.app)
    scene.send("a", 2.0)

    with pytest.raises(BrokerNotEmpty, match="1 scheduled"):
        [*topology.delete(scene.app, settle=0)]
    # Those who declared before, and those who come later.
    with pytest.raises(
        NoQueue, match=r"'delayq\.entry\.3\.1'; .* or delays were closed: .* --apply"
    ):
        scene.send("b", 2.0)
    with pytest.raises(ConfigError, match=r"closed by .* topology --delete"):
        new_rabbitmq(max_delay=60.0).send("b", 2.0)
    assert scene.receive("orders").keys() == {"a"}

    # Stopped while it waits, and repeated after it was killed while it removed.
    next(topology.delete(scene.app, settle=60))
    scene.channel.queue_delete("delayq.delay.5.3")
    scene.channel.exchange_delete("delayq.level.2")
    assert len([*topology.delete(scene.app, settle=5)]) >= 2
    left = [each.name for each in topology.check(scene.app) if each.state is not State.MISSING]
    assert left == ["delayq.exit.news"]
    assert [*topology.delete(scene.app, settle=0)] == []


def test_a_dead_letter_that_comes_while_it_is_watched_is_kept(scene: RabbitMQScene) -> None:
    topology.apply(scene.app)
    stream, steps = scene.channel.dead_letters, topology.delete(scene.app, settle=60)
    stream.add("orders", "purged", "failed", b"{}")
    scene.app._delayq.purge("purged")
    next(steps)
    stream.add("orders", "a", "failed", b"{}")

    with pytest.raises(BrokerNotEmpty, match=r"there are still 1 dead\."):
        next(steps)

    assert [each.dead_lettered.id for each in stream.read()] == ["a"]


def test_a_task_that_waits_for_a_binding_outlives_a_removal(scene: RabbitMQScene) -> None:
    topology.apply(scene.app)
    scene.send("a", 0.1, exchange="news", routing_key="none")
    # RabbitMQ counts it nowhere that an AMQP client can see.
    wait_until(lambda: scene.app._delayq.stats().scheduled == 0, TIMEOUT, "it is due")

    [*topology.delete(scene.app, settle=0)]

    Queue("late", Exchange("news", "topic"), "none")(scene.channel).declare()
    assert scene.receive("late").keys() == {"a"}


def test_a_closed_one_is_opened_again(scene: RabbitMQScene) -> None:
    scene.send("a", 5.0)
    with pytest.raises(BrokerNotEmpty):
        [*topology.delete(scene.app, settle=0)]

    topology.apply(scene.app)

    scene.send("b", 0.1)
    assert scene.receive("orders", 2).keys() == {"a", "b"}


def test_stats_tell_ready_by_queue_and_scheduled_in_all(scene: RabbitMQScene) -> None:
    topology.apply(scene.app)
    scene.app.send_task("shop.work")
    for n in range(3):
        scene.send(f"{n}", 50.0, queue="news", routing_key="news.today")

    queues = [RabbitMQQueueStats("news", 0), RabbitMQQueueStats("orders", 1)]
    expected = RabbitMQStats(queues, scheduled=3, unroutable=0, dead=0)
    stats = scene.app._delayq.stats()
    assert stats == expected
    for ours, redis in ((stats, Stats), (stats.queues[0], QueueStats)):
        untold = {field.name for field in fields(redis)} - {field.name for field in fields(ours)}
        assert {getattr(ours, name) for name in untold - {"ready"}} == {None}
    assert CommandLine(scene.app)("stats", "--json").json == expected.as_dict()


def test_the_command_says_what_is_missing_and_declares_it(scene: RabbitMQScene) -> None:
    cli = CommandLine(scene.app)

    missing, applied, present = (
        cli("topology", each) for each in ("--check", "--apply", "--check")
    )

    assert [each.code for each in (missing, applied, present)] == [0, 0, 0]
    assert missing.out.count(": not declared yet\n") == 49
    assert missing.out.endswith("of 49: 0 ok, 49 not declared yet, 0 declared differently\n")
    assert present.out == "of 49: 49 ok, 0 not declared yet, 0 declared differently\n"
    assert len(cli("topology", "--check", "--json").json["items"]) == 49
    assert cli("topology").out.count(": ok") == 49
    assert cli("topology", "--apply", "--delete").code == 2
    assert [*cli("topology", "--json").json] == ["exchanges", "queues", "bindings"]
    assert cli("topology", "--delete", "--settle", "0").out == "removed, but for exit queues\n"


def test_what_is_missing_is_a_fault_where_tasks_may_not_declare_it(
    new_rabbitmq: NewRabbitMQ,
) -> None:
    checked = CommandLine(new_rabbitmq(max_delay=60.0, declare=False).app)("topology", "--check")

    assert (checked.code, checked.out.splitlines()[-1]) == (
        1,
        "of 48: 0 ok, 48 not declared yet, 0 declared differently",
    )
