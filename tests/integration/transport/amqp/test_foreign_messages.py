"""Whatever a client of RabbitMQ writes: workers live, each message runs or is dead, lists work."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from kombu import Exchange, Queue

from celery_delayq.model.dead_letter import DeadFilter, DeadLetter
from celery_delayq.testing import WorkerProcess, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from celery_delayq.transport.amqp.frames import Content, encoded
from tests.integration.conftest import MakeApp
from tests.support.foreign import contents, task_headers
from tests.support.raw_amqp import RawClient
from tests.support.scene import TIMEOUT, AppScene, StartWorker

BODY = '[[], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'

#: One worker serves all examples of a test, so a failing one is not made smaller.
FUZZ = settings(
    max_examples=30,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

#: Messages of one example.
MANY = 15


class Foreign(AppScene):
    """A worker, and a client that writes what it likes."""

    module, prefetch = "header_tasks", 4

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.broker_client = RawClient(self.app.conf.broker_url.removeprefix("delayq+"))
        #: What RabbitMQ has taken, by mark.
        self.sent: dict[str, Content] = {}
        self.worker: WorkerProcess

    def send(self, data: st.DataObject, task: str, exchange: str, key: bytes) -> None:
        """Send a message that is nearly a task's."""
        headers = task_headers(task)
        content = data.draw(contents(headers))
        if self.broker_client.send(content, exchange, key):
            self.sent[headers["mark"]] = content

    def start_with_gossip(self) -> WorkerProcess:
        """Start a worker that listens to events of others."""
        return self._delayq_worker("tests.apps.header_tasks:app", pool="threads")

    def ran(self) -> set[str]:
        """Return the marks of the tasks that ran."""
        return {mark.decode() for mark in self.client.lrange("marks", 0, -1)}

    def run_last(self) -> None:
        """Send a usual task, and wait until it has run."""
        headers = task_headers("header.ok")
        usual = {"application_headers": headers, "content_type": "application/json"}
        assert self.broker_client.send(encoded(BODY, usual), "", b"celery")
        wait_until(
            lambda: headers["mark"] in self.ran() or not self.worker.running,
            TIMEOUT,
            lambda: self.worker.log[-9000:],
        )
        assert self.worker.running, self.worker.log[-9000:]
        assert self.worker.log.count(" ready.") == 1, self.worker.log[-9000:]
        assert "Unrecoverable" not in self.worker.log

    def list_all(self) -> list[DeadLetter]:
        """Read all dead letters, in each way."""
        dead_letters = [*self.delayq.dead_letters()]
        for each in dead_letters:
            json.dumps(each.as_dict())
            assert repr(each)
        assert self.delayq.count_dead() == len(dead_letters)
        return dead_letters

    def missing(self) -> list[Content]:
        """Return what has neither run nor is dead."""
        dead = {each.headers.get("mark") for each in self.delayq.dead_letters()}
        return [self.sent[mark] for mark in self.sent.keys() - self.ran() - dead]

    def wait_settled(self) -> None:
        """Wait until all has run or is dead."""
        wait_until(
            lambda: not self.missing(),
            TIMEOUT,
            lambda: f"{self.missing()}:\n{self.worker.log[-9000:]}",
        )


@pytest.fixture
def scene(
    delayq_broker_url: str,
    make_app: MakeApp,
    delayq_redis: RedisUnderTest,
    delayq_worker: StartWorker,
) -> Iterator[Foreign]:
    scene = Foreign(delayq_redis, make_app(broker=delayq_broker_url), delayq_worker)
    with scene.broker_client:
        yield scene


@pytest.mark.parametrize("acks_late", [True, False])
@pytest.mark.parametrize("pool", ["threads", "solo", "prefork"])
def test_no_message_ends_a_worker_and_none_is_lost(
    scene: Foreign, pool: str, acks_late: bool
) -> None:
    scene.worker = scene.start(pool, conf={"task_acks_late": acks_late})
    with scene.app.connection_for_write() as connection:
        Queue("celery", Exchange("any", "topic"), "#")(connection.default_channel).declare()

    @FUZZ
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        for _ in range(MANY):
            task = data.draw(st.sampled_from(["header.ok", "header.fails", "header.rated"]))
            if data.draw(st.booleans()):
                scene.send(data, task, "", b"celery")
            else:
                scene.send(data, task, "any", data.draw(st.binary(max_size=12)))
        scene.run_last()

    run()
    scene.wait_settled()
    assert len(scene.sent) > 300
    dead_letters = scene.list_all()
    assert scene.ran()
    assert dead_letters

    replayed = scene.delayq.replay_all(DeadFilter(), everything=True)
    assert sum(replayed.outcomes.values()) == len(dead_letters)
    scene.run_last()
    while dead_letters := scene.list_all():
        scene.delayq.purge_all(DeadFilter(), everything=True)


def test_a_dead_letter_has_the_bytes_of_its_message(scene: Foreign) -> None:
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


def test_no_event_and_no_command_to_all_ends_a_worker(scene: Foreign) -> None:
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


def test_foreign_messages_in_the_streams_hide_no_dead_letter_and_can_be_removed(
    scene: Foreign,
) -> None:
    """The queues that only listing reads: both streams, and what was due and had no queue."""
    topology = ("delayq.dead_letters", "delayq.dead_letters.settled", "delayq.unroutable")
    delayq = scene.delayq
    with scene.app.connection_for_write() as connection:
        connection.default_channel.declarer.prepare(1, "", "")
    number = 0

    @FUZZ
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        nonlocal number
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
