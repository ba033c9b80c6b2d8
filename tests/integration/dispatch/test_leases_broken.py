"""What is no message, or no task, amid a batch: a dead letter, and nothing else stops."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from kombu import Connection, Consumer, Queue
from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.testing import wait_until
from tests.apps.lease_tasks import held
from tests.integration.conftest import MakeApp
from tests.support import TIMEOUT
from tests.support.dead_letters import packed, reasons
from tests.support.scene import Leases

PROPERTIES: dict[str, Any] = {
    "delivery_tag": "tag",
    "delivery_info": {"exchange": "", "routing_key": "celery"},
    "body_encoding": "base64",
    "priority": 0,
}


def message(headers: Any = None, body: Any = ((1, 1), {}, {}), **other: Any) -> bytes:
    """Return a message of a task, with other parts."""
    usual = {"lang": "py", "task": "lease.add", "id": "id"}
    given = {"properties": PROPERTIES, **other}
    return packed(body, usual if headers is None else headers, **given)


#: What stands in the list, by what is wrong with it, and a part of the reason.
NO_MESSAGES: dict[str, tuple[bytes, str]] = {
    "no JSON": (b"no JSON", "undecodable"),
    "cut off": (message()[:-20], "undecodable"),
    "not UTF-8": (b"\xff\xfe{}", "undecodable"),
    "a number": (b"7", "undecodable"),
    "a list": (b"[]", "undecodable"),
    "empty": (b"", "undecodable"),
    "without properties": (b'{"body": "e30=", "headers": {}}', "no properties"),
    "properties are a list": (message(properties=[]), "no properties"),
    "no delivery_info": (message(properties={"delivery_tag": "t"}), "no properties"),
    "unknown body encoding": (
        message(properties={**PROPERTIES, "body_encoding": "rot13"}),
        "undecodable",
    ),
    "no body": (b'{"body": 1}', "no properties"),
    "no base64": (json.dumps({**json.loads(message()), "body": "A"}).encode(), "undecodable"),
    "100 kB of noise": (os.urandom(100_000), "undecodable"),
}


@pytest.mark.parametrize("prefetch", [1, 0, 100])
def test_what_is_no_message_is_a_dead_letter_and_its_neighbours_come(
    prefetch: int, make_app: MakeApp, connection: Connection, redis: Redis
) -> None:
    app = make_app()
    good = [message(body=n) for n in range(len(NO_MESSAGES) + 1)]
    broken = [item for item, _ in NO_MESSAGES.values()]
    for n, item in enumerate(good):
        redis.lpush("celery", item, *broken[n : n + 1])
    got: list[Any] = []

    def take(one: Any) -> None:
        got.append(one.payload)
        one.ack()

    channel = connection.channel()
    with Consumer(channel, [Queue("celery")], on_message=take, prefetch_count=prefetch):
        while len(got) < len(good):
            connection.drain_events(timeout=TIMEOUT)
    channel.close()

    assert got == list(range(len(good)))
    assert reasons(DelayQ.of(app)).keys() == set(broken)
    for name, (item, reason) in NO_MESSAGES.items():
        assert reason in reasons(DelayQ.of(app))[item], name
    wait_until(lambda: not held(redis), what="nothing is held")


#: Messages that are no tasks; what Celery says of them is the reason.
NO_TASKS: dict[str, bytes] = {
    "headers are null": message().replace(b'"headers": {', b'"headers": null, "_": {'),
    "headers are empty": message(headers={}),
    "headers are a text": message(headers="text"),
    "headers are a list": message(headers=["list"]),
    "headers are a number": message(headers=7),
    "unknown task": message(headers={"task": "who.knows", "id": "unknown"}),
    "the task is null": message(headers={"task": None, "id": "null"}),
    "the task is a list": message(headers={"task": ["lease.add"], "id": "list"}),
    "without an id": message(headers={"task": "lease.add"}),
    "the id is a list": message(headers={"task": "lease.add", "id": ["list"]}),
    "no arguments": message(headers={"task": "lease.add", "id": "none"}, body={}),
    "arguments are a text": message(headers={"task": "lease.add", "id": "text"}, body="text"),
    "unknown content type": message(
        headers={"task": "lease.add", "id": "type"}, **{"content-type": "application/x-who"}
    ),
    "forbidden content type": message(
        headers={"task": "lease.add", "id": "pickle"},
        **{"content-type": "application/x-python-serialize"},
    ),
    "body is no JSON": message(
        headers={"task": "lease.add", "id": "body"},
        body=None,
    ).replace(b'"bnVsbA=="', b'"bm8gSlNPTg=="'),
}


@pytest.mark.parametrize("pool", ["solo", "prefork"])
def test_what_a_worker_cannot_run_is_a_dead_letter_and_its_neighbours_run(
    pool: str, make_app: MakeApp, leases: Leases, redis: Redis
) -> None:
    app = make_app()
    names = {item: name for name, item in NO_TASKS.items()}
    names |= {item: name for name, (item, _) in NO_MESSAGES.items()}
    for item, name in names.items():
        app.send_task("lease.add", (1, 1), task_id=f"before {name}")
        redis.lpush("celery", item)
    app.send_task("lease.add", (1, 1), task_id="the last one")
    worker = leases.start(pool, prefetch=8)

    wait_until(lambda: redis.llen("log") > len(names) or not worker.running, what="neighbours ran")
    assert worker.running, worker.log
    wait_until(lambda: not held(redis), what="nothing is held")

    assert set(leases.runs("id")) == {
        *(f"before {name}" for name in names.values()),
        "the last one",
    }
    assert redis.llen("log") == len(names) + 1
    dead = reasons(DelayQ.of(app))
    assert {names[item] for item in dead} == {*names.values()}
    assert all(reason for reason in dead.values()), dead
