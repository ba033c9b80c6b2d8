"""What the exporter tells of RabbitMQ."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from celery_delayq import DelayQ, __version__
from celery_delayq.testing import wait_until
from celery_delayq.transport.amqp.dead_letters import DeadLetterStream
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


def test_dead_letters_are_read_once_and_unknown_after_an_error(
    new_rabbitmq: NewRabbitMQ, export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = new_rabbitmq()
    stream, exported = scene.channel.dead_letters, export(DelayQ.of(scene.app))
    read: list[int] = []
    page = DeadLetterStream.page

    def recording(*args: Any) -> Any:
        found, first = page(*args)
        read.extend(each.offset for each in found)
        return found, first

    def add(queue: str, *ids: str) -> None:
        for id in ids:
            stream.add(queue, id, "why", b"{}")

    def dead() -> Values:
        return {key: value for key, value in entries(exported.all()).items() if "dead" in key}

    monkeypatch.setattr(DeadLetterStream, "page", recording)
    assert dead() == {}
    add("orders", "a", "b", "c")
    add("gone", "d")
    assert dead() == {("orders", "dead"): 3, ("gone", "dead"): 1}
    add("orders", "e", "f")
    stream.settle([read[0], read[-1] + 2])
    assert dead() == {("orders", "dead"): 3, ("gone", "dead"): 1}
    assert dead() == {("orders", "dead"): 3, ("gone", "dead"): 1}
    assert len(read) == len({*read}) == 5

    monkeypatch.setattr(DeadLetterStream, "view", lambda *_: 1 / 0)
    assert not any("dead" in key for key in exported.all())
    monkeypatch.undo()
    for name in (scene.channel.topology.dead_letters, scene.channel.topology.settled):
        scene.channel.queue_delete(name)
    assert dead() == {}
    add("orders", "g")
    assert dead() == {("orders", "dead"): 1}


@pytest.mark.full
def test_a_rabbitmq_that_is_away(export: Export) -> None:
    app = Celery("shop", broker="delayq+amqp://127.0.0.1:1//", set_as_current=False)
    with app, DelayQ(app) as delayq:
        found = export(delayq).now()

    assert found["delayq_up",] == 0
    assert ("delayq_build_info", "rabbitmq", __version__) in found
