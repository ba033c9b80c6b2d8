"""What the exporter tells of RabbitMQ."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.testing import wait_until
from tests.integration.conftest import NewRabbitMQ
from tests.integration.metrics.conftest import Export, Values


def entries(found: Values) -> Values:
    return {key[1:]: value for key, value in found.items() if key[0] == "delayq_entries" and value}


def test_what_waits_in_rabbitmq(new_rabbitmq: NewRabbitMQ, export: Export) -> None:
    scene = new_rabbitmq()
    for number in range(3):
        scene.send(f"later{number}", countdown=600)
    for number in range(2):
        scene.app.send_task("shop.work", task_id=f"now{number}")
    envelope = b'{"body": "", "headers": {"id": "dead", "task": "shop.work"}, "properties": {}}'
    scene.channel.dead_letters.add("orders", "dead", "why", envelope)
    exported = export(DelayQ.of(scene.app))

    wait_until(
        lambda: (
            entries(exported.all())
            == {
                ("", "scheduled"): 3,
                ("orders", "ready"): 2,
                ("orders", "dead"): 1,
            }
        ),
        20,
        lambda: f"{entries(exported.all())}",
    )
    names = {key[0].removeprefix("delayq_") for key in exported.now()}
    own = {"up", "build_info", "scrape_duration_seconds", "last_success_timestamp_seconds"}
    assert names == {*own, "entries"}


@pytest.mark.full
def test_a_rabbitmq_that_is_away(export: Export) -> None:
    app = Celery("shop", broker="delayq+amqp://127.0.0.1:1//", set_as_current=False)
    with app, DelayQ(app) as delayq:
        found = export(delayq).now()

    assert found["delayq_up",] == 0
    assert ("delayq_build_info", "rabbitmq", "0.1.0.dev0") in found
