"""``delayq.compat()`` on RabbitMQ, where only dead letters can be read."""

from __future__ import annotations

import pytest

from celery_delayq import DelayQ
from tests.integration.conftest import NewRabbitMQ
from tests.support.cli import CommandLine
from tests.support.dead_letters import message

pytestmark = pytest.mark.nightly


def test_dead_letters_are_checked_and_the_rest_is_named(new_rabbitmq: NewRabbitMQ) -> None:
    scene = new_rabbitmq()
    cli = CommandLine(scene.app)
    store = scene.channel.connection.delayq.dead_letter_connection
    store.ask(lambda stream: stream.add("orders", "dead", "why", message("dead", "shop.gone")))

    report = DelayQ.of(scene.app).compat()

    assert (report.looked, report.fails) == ({"dead": 1}, 1)
    assert report.not_looked == ("scheduled", "ready")
    assert cli("compat").code == 1
    assert (cli("compat", "--queue", "mail").code, cli("compat", "--queue", "mail").err) == (0, "")
    ran = cli("compat", "--queue", "mail", "--strict")
    assert ran.code == 1
    assert "This broker lets nobody read what is scheduled or ready." in ran.out
