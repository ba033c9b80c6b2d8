"""What is declared, by settings; and which brokers are refused."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from celery_delayq.errors import ConfigError, UnsupportedServer
from celery_delayq.settings import Settings
from celery_delayq.transport.amqp.cascade import Hop
from celery_delayq.transport.amqp.topology import Binding, QueueItem, Topology
from celery_delayq.transport.amqp.transport import check_version


def of(**settings: Any) -> Topology:
    return Topology(Settings.from_options({"delayq": settings}))


def test_by_default_there_are_three_quorum_queues_at_each_of_16_levels() -> None:
    queues = [item.name for item in of().all() if isinstance(item, QueueItem)]

    expected = [f"delayq.delay.{level}.{digit}" for level in range(16) for digit in (1, 2, 3)]
    streams = ["delayq.dead_letters", "delayq.dead_letters.settled"]
    assert queues == ["delayq.unroutable", *expected, *streams]


def test_a_binding_comes_after_both_of_its_ends() -> None:
    seen: set[str] = set()
    for item in of().all():
        if isinstance(item, Binding):
            assert {item.source, item.target.name} <= seen
        else:
            seen.add(item.name)


def test_apps_share_a_connection_for_dead_letters_if_their_settings_are_the_same() -> None:
    def connection(**settings: Any) -> Any:
        with Celery("shop", broker="delayq+amqp://localhost:1//", set_as_current=False) as app:
            app.conf.broker_transport_options = {"delayq": settings}
            return app.connection_for_write().transport.dead_letter_connection

    first, same, other = connection(), connection(declare=True), connection(declare=False)

    assert first is same is not other


@pytest.mark.parametrize(
    ("max_delay", "levels"), [(0.01, 1), (0.075, 1), (0.1, 2), (60, 6), (107_374_182.375, 16)]
)
def test_max_delay_needs_so_many_levels(max_delay: float, levels: int) -> None:
    assert len(of(max_delay=max_delay).levels) == levels


def test_a_max_delay_that_16_digits_cannot_say_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"with unit=0\.005 expected at most 21474836"):
        of(unit=0.005, max_delay=21_474_837)


def test_each_setting_of_a_delay_queue_is_in_its_arguments() -> None:
    topology = of(prefix="shop", unit=0.1, queue_type="classic", max_length=7)

    assert next(topology.at_hop(Hop(2, 3))) == QueueItem(
        "shop.delay.2.3",
        {
            "x-message-ttl": 4800,
            "x-dead-letter-exchange": "shop.level.1",
            "x-queue-type": "classic",
            "x-max-length": 7,
        },
    )


def test_an_exchange_with_a_long_name_has_an_exit_queue_with_a_short_one() -> None:
    queues = [item for x in "ab" for item in of().at_exchange(x * 255)]
    names = {item.name for item in queues if isinstance(item, QueueItem)}

    assert len(names) == 2
    assert {len(name) for name in names} == {len("delayq.exit.") + 64}


@pytest.mark.parametrize("version", ["3.10.0", "3.10.8+2", "4.0.1"])
def test_a_rabbitmq_of_3_10_or_newer_is_taken(version: str) -> None:
    check_version({"product": "RabbitMQ", "version": version})


@pytest.mark.parametrize(
    ("server", "named"),
    [
        ({"product": "RabbitMQ", "version": "3.9.29"}, "RabbitMQ 3.9.29"),
        ({"product": "Qpid", "version": "9.1"}, "Qpid 9.1"),
        ({}, "None None"),
    ],
)
def test_another_broker_is_refused(server: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedServer, match=f"is {named}; .* needs RabbitMQ 3.10 or newer"):
        check_version(server)
