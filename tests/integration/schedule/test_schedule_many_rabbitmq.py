"""``schedule_many`` on RabbitMQ."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from kombu import Queue

from celery_delayq import DelayQ
from celery_delayq.embedded.rabbitmq import EmbeddedRabbitMQ
from celery_delayq.schedule.items import Item, ItemOutcome, ManyFailed
from tests.integration.conftest import NewRabbitMQ
from tests.support.rabbitmq import RabbitMQScene


@pytest.fixture
def scene(new_rabbitmq: NewRabbitMQ) -> RabbitMQScene:
    return new_rabbitmq()


def test_each_item_has_its_outcome_and_comes_when_it_is_due(scene: RabbitMQScene) -> None:
    small = Queue("small", queue_arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    scene.app.conf.task_queues = [Queue("orders"), small]
    outcomes: list[ItemOutcome] = []
    items = [
        *(Item(id=f"later-{n}", countdown=1.0) for n in range(5)),
        Item(id="now"),
        Item(id="wrong", countdown="soon"),
        Item(id="unique", unique_key="k", countdown=1.0),
        *(Item(id=f"small-{n}", queue="small") for n in range(3)),
    ]
    due = time.time() + 1.0

    report = DelayQ.of(scene.app).schedule_many(
        items, task="shop.work", batch=4, on_outcome=outcomes.append
    )

    assert report.counts == {"scheduled": 5, "ready": 3, "refused": 2, "full": 1}
    assert (report.position, report.taken) == (11, 11)
    states = {outcome.id: outcome.state for outcome in outcomes}
    assert [(each.index, each.id) for each in outcomes] == [*enumerate(each.id for each in items)]
    assert [states[id] for id in ("wrong", "unique", "small-2")] == ["refused", "refused", "full"]
    came = scene.receive("orders", 6)
    assert came.keys() == {"now", *(f"later-{n}" for n in range(5))}
    assert all(at >= due for id, at in came.items() if id != "now")


def test_a_broker_that_goes_away_ends_it_with_the_position(
    scene: RabbitMQScene, delayq_rabbitmq_server: EmbeddedRabbitMQ
) -> None:
    def items() -> Iterator[Item]:
        for n in range(20):
            if n == 10:
                # Which closes its connections.
                vhost = scene.channel.connection.virtual_host
                delayq_rabbitmq_server.delete_vhost(vhost)
            yield Item(id=f"{n}", countdown=0.5)

    with pytest.raises(ManyFailed) as caught:
        DelayQ.of(scene.app).schedule_many(items(), task="shop.work", batch=4)

    report = caught.value.report
    assert (report.position, report.stored) == (8, 8)
