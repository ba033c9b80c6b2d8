"""A worker with foreign messages, and the outcome of each.

The expectation is the same for each broker: the worker lives and runs good tasks, each message has
run or is dead, and all commands can list the contents.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from celery import Celery
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from celery_delayq.model.dead_letter import DeadLetter
from celery_delayq.testing import WorkerProcess, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from celery_delayq.transport.amqp.frames import encoded
from tests.support import TIMEOUT
from tests.support.cli import CommandLine
from tests.support.foreign import HEADS, contents, envelopes, task_headers
from tests.support.keyspace import look
from tests.support.raw_amqp import RawClient
from tests.support.scene import AppScene, StartWorker

BODY = '[[], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'

#: One worker serves all examples of a test, so Hypothesis does not shrink a failing example.
FUZZ = settings(
    max_examples=30,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

#: Number of messages in an example.
MANY = 15

TASKS = ("header.ok", "header.fails", "header.rated")


class Foreign(AppScene):
    """A worker, and a client that writes any bytes."""

    module, prefetch = "header_tasks", 4
    #: Commands that list the contents.
    commands: tuple[str, ...] = ("dead list", "stats", "doctor")

    def __init__(self, redis: RedisUnderTest, app: Celery, delayq_worker: StartWorker) -> None:
        super().__init__(redis, app, delayq_worker)
        #: The messages that the broker has accepted, by the mark of each.
        self.sent: dict[str, Any] = {}
        self.worker: WorkerProcess

    def put(self, data: st.DataObject) -> None:
        """Put an almost valid message somewhere."""
        raise NotImplementedError

    def put_usual(self, headers: dict[str, Any]) -> None:
        """Send a valid task."""
        raise NotImplementedError

    def redeliver_unacked(self) -> None:
        """Let kombu redeliver the messages that stock workers had."""

    def ran(self) -> set[str]:
        """Return the marks of the tasks that ran."""
        return {mark.decode() for mark in self.client.lrange("marks", 0, -1)}

    def run_last(self) -> None:
        """Send a valid task, and wait until it has run."""
        headers = task_headers("header.ok")
        self.put_usual(headers)
        wait_until(
            lambda: headers["mark"] in self.ran() or not self.worker.running,
            TIMEOUT,
            lambda: self.worker.log[-9000:],
        )
        assert self.worker.running, self.worker.log[-9000:]
        assert self.worker.log.count(" ready.") == 1, self.worker.log[-9000:]
        assert "Unrecoverable" not in self.worker.log

    def list_all(self) -> list[DeadLetter]:
        """Read all dead letters in each way, and run the other lists."""
        dead_letters = [*self.delayq.dead_letters()]
        for each in dead_letters:
            json.dumps(each.as_dict())
            assert repr(each)
        assert self.delayq.count_dead() == len(dead_letters)
        command = CommandLine(self.app, shows_foreign=True)
        for name in self.commands:
            for form in ([], ["--json"]):
                ran = command(*name.split(), *form)
                assert ran.code in (0, 1), (name, ran)  # 1: the command has findings
        return dead_letters

    def dead(self) -> str:
        """Return all dead letters in one text, which has the marks of their messages."""
        found = [*self.delayq.dead_letters()]
        return "".join(str(each.message or each.dead_lettered.message) for each in found)

    def missing(self) -> list[Any]:
        """Return the messages that have neither run nor died."""
        left = self.sent.keys() - self.ran()
        dead = self.dead() if left else ""
        return [(mark, self.sent[mark], self.where(mark)) for mark in left if mark not in dead]

    def where(self, mark: str) -> list[bytes]:
        """Return the keys that contain a mark."""
        return [key for key, value in look(self.client, "*").items() if mark in str(value)]

    def wait_settled(self) -> None:
        """Wait until all messages have run or are dead."""
        self.redeliver_unacked()
        wait_until(
            lambda: not self.missing(),
            TIMEOUT,
            lambda: f"{self.missing()}:\n{self.worker.log[-9000:]}",
        )


class ForeignRabbitMQ(Foreign):
    """On a virtual host of RabbitMQ, with an exchange that routes all messages to the queue."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.broker_client = RawClient(self.app.conf.broker_url.removeprefix("delayq+"))

    def put(self, data: st.DataObject) -> None:
        headers = task_headers(data.draw(st.sampled_from(TASKS)))
        content = data.draw(contents(headers))
        exchange, key = "", b"celery"
        if data.draw(st.booleans()):
            exchange, key = "any", data.draw(st.binary(max_size=12))
        if self.broker_client.send(content, exchange, key):
            self.sent[headers["mark"]] = content

    def put_usual(self, headers: dict[str, Any]) -> None:
        usual = {"application_headers": headers, "content_type": "application/json"}
        assert self.broker_client.send(encoded(BODY, usual), "", b"celery")

    def start_with_gossip(self) -> WorkerProcess:
        """Start a worker that listens to events of other workers."""
        return self._delayq_worker("tests.apps.header_tasks:app", pool="threads")


class ForeignRedis(Foreign):
    """In the keys of a Redis queue that have messages."""

    commands = (
        *Foreign.commands,
        *("list", "fsck", "paused", "periodic list"),
    )

    def put(self, data: st.DataObject) -> None:
        headers = task_headers(data.draw(st.sampled_from(TASKS)))
        message = data.draw(envelopes(headers))
        place = data.draw(st.sampled_from(PLACES))
        place(self, data, message)
        self.sent[headers["mark"]] = place.__name__, message[:2000]

    def put_usual(self, headers: dict[str, Any]) -> None:
        properties = {
            "delivery_tag": headers["mark"],
            "delivery_info": {"exchange": "", "routing_key": "celery"},
            "body_encoding": "base64",
        }
        parts = {
            "body": base64.b64encode(BODY.encode()).decode(),
            "content-type": "application/json",
            "content-encoding": "utf-8",
            "headers": headers,
            "properties": properties,
        }
        self.client.lpush("celery", json.dumps(parts))

    def list_all(self) -> list[DeadLetter]:
        for listed in (self.delayq.entries(), self.delayq.history(), self.delayq.periodic.list()):
            assert all(map(repr, listed))
        assert CommandLine(self.app)("migrate", "--from", "stock", "--dry-run").code == 0
        return super().list_all()

    def redeliver_unacked(self) -> None:
        with self.app.connection_for_write() as connection:
            connection.default_channel.qos.restore_visible(0, None, 1)

    # -- keys that may have a message

    def put_ready(self, data: st.DataObject, message: bytes) -> None:
        """Make a message ready, with any priority."""
        step = data.draw(st.sampled_from(["", "\x06\x163", "\x06\x169"]))
        self.client.lpush(f"celery{step}", message)
        self.client.lpush("{celery}:wake", "")

    def put_due(self, data: st.DataObject, message: bytes) -> None:
        """Make a message due, in a record or other bytes."""
        name = _new_name(data)
        with self.client.pipeline() as pipe:
            pipe.hset("{celery}:entries", name, data.draw(st.sampled_from(HEADS)) + message)
            pipe.zadd("{celery}:due", {name: data.draw(st.sampled_from(_DUES))})
            pipe.zadd("delayq:next_due", {"celery": 0})
            pipe.execute()

    def put_leased(self, data: st.DataObject, message: bytes) -> None:
        """Lease a message to a dead process."""
        name = _new_name(data)
        field = data.draw(st.sampled_from(["1:1", "9" * 400 + ":2", "x", b"\xff", ""]))
        with self.client.pipeline() as pipe:
            pipe.hset(
                b"{celery}:leased:" + name, field, data.draw(st.sampled_from(HEADS)) + message
            )
            pipe.zadd("{celery}:leases", {name: 0})
            pipe.zadd("delayq:lease_ends", {"celery": 0})
            pipe.execute()

    def put_quarantined(self, data: st.DataObject, message: bytes) -> None:
        """Quarantine a message."""
        self.client.lpush("{celery}:quarantined", data.draw(st.sampled_from(HEADS)) + message)
        self.client.lpush("{celery}:wake", "")

    def put_unacked(self, data: st.DataObject, message: bytes) -> None:
        """Give a message to a dead stock worker."""
        name = _new_name(data)
        item = data.draw(
            st.sampled_from(
                [b'[%b, "", "celery"]', b'[%b, "no", ""]', b"[%b]", b"%b", b"[%b, 1, {}]"]
            )
        )
        with self.client.pipeline() as pipe:
            pipe.hset("unacked", name, item % message)
            pipe.zadd("unacked_index", {name: 0})
            pipe.execute()


PLACES: list[Callable[[ForeignRedis, st.DataObject, bytes], None]] = [
    *(ForeignRedis.put_ready, ForeignRedis.put_due, ForeignRedis.put_leased),
    *(ForeignRedis.put_quarantined, ForeignRedis.put_unacked),
]

#: Beginnings of the names of entries and processes.
_NAMES = (b"", b"\xff", b"a\0b", b"%", b"\x1b[2J", b"x" * 300)


def _new_name(data: st.DataObject) -> bytes:
    # Hypothesis repeats values, and each name must be new.
    return data.draw(st.sampled_from(_NAMES)) + uuid4().hex.encode()


#: Dues that have passed.
_DUES = (0, 1, -1, -1.5, float("-inf"), -1e300, time.time() * 1000)
