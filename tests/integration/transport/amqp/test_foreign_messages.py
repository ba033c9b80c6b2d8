"""Foreign messages where only RabbitMQ has them: in streams, events, and in other encodings."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_delayq.model.dead_letter import DeadFilter
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from celery_delayq.transport.amqp.frames import encoded
from tests.integration.conftest import MakeApp
from tests.support import TIMEOUT
from tests.support.foreign import contents, task_headers
from tests.support.foreign_scene import FUZZ, MANY, ForeignRabbitMQ
from tests.support.scene import StartWorker


@pytest.fixture
def scene(
    make_app: MakeApp, delayq_redis: RedisUnderTest, delayq_worker: StartWorker
) -> Iterator[ForeignRabbitMQ]:
    scene = ForeignRabbitMQ(delayq_redis, make_app(), delayq_worker)
    with scene.broker_client:
        yield scene


def test_a_dead_letter_has_the_bytes_of_its_message(scene: ForeignRabbitMQ) -> None:
    scene.worker = scene.start("threads")
    bodies = {"utf-7": b'[["+2AA-"], {}, {}]', "latin-1": b'[["\xe9"], {}, {}]', "rot13": b"[\xff]"}
    for encoding, body in bodies.items():
        properties = {
            "application_headers": task_headers("header.fails") | {"id": encoding},
            "content_type": "application/json",
            "content_encoding": encoding,
        }
        assert scene.broker_client.send(encoded(body, properties), "", b"celery")

    wait_until(lambda: scene.delayq.count_dead() == len(bodies), TIMEOUT, lambda: scene.worker.log)

    found = {each.id: each.message or {} for each in scene.list_all()}
    assert {id: base64.b64decode(each["body"]) for id, each in found.items()} == bodies
    assert {id: each["content-encoding"] for id, each in found.items()} == {id: id for id in bodies}
    # A text in an encoding that is not UTF-8 reaches the task, as on stock.
    assert {id.decode() for id in scene.client.lrange("ran", 0, -1)} == {"utf-7", "latin-1"}


def test_no_event_and_no_command_to_all_ends_a_worker(scene: ForeignRabbitMQ) -> None:
    """What no queue keeps: gossip and remote control."""
    scene.worker = scene.start_with_gossip()

    @FUZZ
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        for _ in range(MANY):
            content = data.draw(contents(task_headers("header.ok")))
            exchange, key = data.draw(
                st.sampled_from(
                    [
                        ("celery.pidbox", b""),
                        *(("celeryev", key) for key in (b"worker.heartbeat", b"worker.\xff", b"")),
                    ]
                )
            )
            scene.broker_client.send(content, exchange, key)
        scene.run_last()

    run()


@pytest.mark.parametrize(
    ("examples", "part"), [(10, 5), pytest.param(30, 1, marks=pytest.mark.nightly)]
)
def test_foreign_messages_in_the_streams_hide_no_dead_letter_and_can_be_removed(
    scene: ForeignRabbitMQ, examples: int, part: int
) -> None:
    """The queues that only listing reads: both streams, and what was due and had no queue.

    One of *part* examples is looked at by all commands, which takes long; each night all are.
    """
    topology = ("delayq.dead_letters", "delayq.dead_letters.settled", "delayq.unroutable")
    delayq = scene.delayq
    with scene.app.connection_for_write() as connection:
        connection.default_channel.declarer.prepare(1, "", "")
    number, commands = 0, scene.commands

    # RabbitMQ keeps what a stream has had, and each list reads all of it.
    @settings(FUZZ, max_examples=examples)
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        nonlocal number
        scene.commands = ("dead list",) if number % (part * MANY) else commands
        own = f"own-{number}"
        delayq.session.dead_letter_connection.ask(
            lambda stream: stream.add("celery", own, "why", b"{}")
        )
        for _ in range(MANY):
            number += 1
            headers = {"delayq-queue": "celery", "delayq-id": f"foreign-{number}"}
            where = data.draw(st.sampled_from(topology))
            scene.broker_client.send(data.draw(contents(headers)), "", where.encode())
        found = scene.list_all()
        assert own in {each.id for each in found}
        purged = delayq.purge_all(DeadFilter(), everything=True)
        assert sum(purged.outcomes.values()) == len(found)
        assert scene.list_all() == []

    run()
