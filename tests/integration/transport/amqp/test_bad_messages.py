"""Messages that nobody should send: the rest runs, and each is kept where it cannot."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from kombu import Connection

from celery_delayq import DelayQ
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.conftest import MakeApp
from tests.support import TIMEOUT
from tests.support.scene import AppScene, StartWorker

BODY = '[[], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'
DEATH = {"queue": "celery", "reason": "expired", "count": 9, "exchange": "", "routing-keys": ["c"]}
OWN = {
    **{"retry": 5, "budget": "x", "unique": 7, "eta": 12, "deliveries": "a", "queue": 3},
    **{"skip_after": "z", "place": 1, "label": 3, "retry_of": 3, "message_id": {}},
}


def _eta(seconds: float) -> str:
    return (datetime.now(timezone.utc) + timedelta(seconds=seconds)).isoformat()


#: Headers beside the usual ones, in which a task runs all the same.
HARMLESS: dict[str, dict[str, Any]] = {
    **{f"delayq {value!r}": {"delayq": value} for value in (5, "{[", "[1]", b"\xff", True)},
    "delayq too deep": {"delayq": "[" * 2000},
    "own data of all kinds": {"delayq": json.dumps(OWN)},
    "digits of a delay": {"delayq-digit-0": "3", "delayq-digit-9": "2"},
    "a target": {"delayq-target": "none", "delayq-due": "soon"},
    "a target that is a list": {"delayq-target": ["a"], "delayq-digit-0": [1]},
    "a circle": {"x-death": [DEATH], "x-first-death-queue": "celery"},
    "deaths in a text": {"x-death": "x"},
    "deliveries": {"x-delivery-count": "x"},
    "an ETA long ago": {"eta": "2001-01-01T00:00:00+00:00"},
    "an ETA soon": {"eta": _eta(1)},
    "large headers": {"large": "x" * 120_000},
    "large headers and an ETA": {"large": "x" * 130_000, "eta": _eta(1)},
}

#: Headers and body of messages that cannot run, and the reason of the dead letter.
HARMFUL: dict[str, tuple[dict[str, Any], Any, str]] = {
    "an ETA in 100 years": ({"eta": _eta(3e9)}, BODY, "rejected: InvalidETA: a delay of "),
    "no ETA": ({"eta": "soon"}, BODY, "rejected: InvalidTaskError: invalid ETA value 'soon'"),
    "no JSON": ({}, "{", "undecodable message: "),
    "no text": ({}, b"\xff\x00", "undecodable message: "),
    "pickle": ({}, BODY, "undecodable message: Refusing to deserialize"),
    "an unknown type": ({}, BODY, "undecodable message: Refusing to deserialize"),
    "not compressed": ({"compression": "application/x-gzip"}, BODY, "undecodable message: "),
    "a number": ({}, "5", "rejected: TypeError: "),
    "unknown task": ({"task": "none"}, BODY, "unknown task 'none'"),
    "task number": ({"task": 5}, BODY, "unknown task 5"),
    "time limit": ({"timelimit": ["1h", None]}, BODY, "rejected: InvalidOption: time_limit='1h'"),
    "failing": (
        {"task": "header.fails", "delayq": json.dumps(OWN)},
        BODY,
        "failed: ValueError: as it does each time",
    ),
}
#: Content types that are not JSON.
KINDS = {"pickle": "application/x-python-serialize", "an unknown type": "application/none"}

#: What is no task at all: dead letters with ids of their own.
NO_TASKS: list[tuple[dict[str, Any] | None, Any]] = [
    ({}, "hello"),
    (None, b"\x00"),
    ({"task": "header.ok"}, BODY),
    ({"id": "x"}, BODY),
    ({"delayq-digit-1": "1", "delayq-target": ""}, "{}"),
]


@pytest.fixture
def scene(
    delayq_broker_url: str,
    make_app: MakeApp,
    delayq_redis: RedisUnderTest,
    delayq_worker: StartWorker,
) -> AppScene:
    scene = AppScene(delayq_redis, make_app(broker=delayq_broker_url), delayq_worker)
    scene.module, scene.prefetch = "header_tasks", 4
    return scene


def _headers(id: str, more: dict[str, Any]) -> dict[str, Any]:
    return {"task": "header.ok", "id": id, "lang": "py", "root_id": id, "retries": 0, **more}


def _push(app: Celery, messages: list[tuple[dict[str, Any] | None, Any]]) -> None:
    """Send messages as any other client would."""
    url = app.conf.broker_url.removeprefix("delayq+")
    with Connection(url) as connection:
        channel = connection.default_channel
        for headers, body in messages:
            kind = KINDS.get((headers or {}).get("id", ""), "application/json")
            text = {"content_type": kind, "content_encoding": "utf-8"}
            message = channel.prepare_message(body, headers=headers, **text)
            channel.basic_publish(message, "", "celery")


@pytest.mark.parametrize("pool", ["solo", "threads", "prefork"])
def test_no_message_ends_a_worker_and_none_is_lost(scene: AppScene, pool: str) -> None:
    worker = scene.start(pool)
    _push(
        scene.app,
        [
            *((_headers(id, more), BODY) for id, more in HARMLESS.items()),
            *((_headers(id, more), body) for id, (more, body, _) in HARMFUL.items()),
            *NO_TASKS,
            (_headers("last", {}), BODY),
        ],
    )

    def ran() -> set[str]:
        return {id.decode() for id in scene.client.lrange("ran", 0, -1)}

    expected = {*HARMLESS, "last", "failing"}
    wait_until(lambda: ran() >= expected, TIMEOUT, lambda: f"{expected - ran()}:\n{worker.log}")
    delayq = DelayQ.of(scene.app)
    number = len(HARMFUL) + len(NO_TASKS)
    wait_until(lambda: delayq.count_dead() == number, TIMEOUT, lambda: worker.log)
    assert ran() == expected
    reasons = {each.id: each.reason for each in delayq.dead_letters()}
    for id, (_, _, reason) in HARMFUL.items():
        assert reasons[id].startswith(reason), reasons[id]
    assert worker.running
    assert worker.log.count(" ready.") == 1
    assert "Unrecoverable" not in worker.log
