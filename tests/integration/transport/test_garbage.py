"""Garbage on a channel to which a worker listens holds nothing up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product

import pytest
from redis import Redis

from celery_delayq.testing import WorkerProcess, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.apps.ending_tasks import Desk
from tests.support.scene import StartWorker

pytestmark = pytest.mark.each_server

#: The channels and patterns to which a worker listens, with a channel of each pattern.
CHANNELS = {
    "delayq:wake:0": "delayq:wake:0",
    "delayq:fleet:0": "delayq:fleet:0",
    "delayq:periodic_wake:0": "delayq:periodic_wake:0",
    "/0.celery.pidbox": "/0.celery.pidbox",
    "/0.celeryev/worker.*": "/0.celeryev/worker.heartbeat",
}

#: A message of kombu's form.
ENVELOPE = {
    "body": "e30=",
    "content-encoding": "utf-8",
    "content-type": "application/json",
    "headers": {},
    "properties": {
        "body_encoding": "base64",
        "delivery_info": {"exchange": "celery.pidbox", "routing_key": "x"},
        "delivery_tag": "tag",
        "delivery_mode": 2,
    },
}


def envelope(**changes: object) -> bytes:
    return json.dumps(ENVELOPE | changes).encode()


#: What each of them gets.
GARBAGE = [
    *(b"", b" ", b"\xff\xfe", b"\0", b"nan celery", b"1e400 celery", b"inf celery", b"1 \xff"),
    *(b"9" * 20 + b" celery", b"9" * 5000 + b" celery", b"-" + b"9" * 20 + b" nobody", b"-5 "),
    *(b"{", b"[]", b"{}", b"1", b"null", b'"text"', b"[" * 100_000, b'{"a":' * 100_000),
    *(b'{"body": 1, "properties": {}}', b'{"properties": null}', b'"\\ud800"', b"1" * 100_000),
    *(envelope(), envelope(body=None), envelope(body="!"), envelope(headers=None)),
    *(envelope(body="W10="), envelope(body="bnVsbA=="), envelope(body="W1tbW1tb")),
    envelope(**{"content-type": "application/x-python-serialize"}),
    *(envelope(**{"content-encoding": "none"}), envelope(**{"content-type": ["x"]})),
    *(envelope(properties={}), envelope(properties={"delivery_info": 5, "delivery_tag": {}})),
]

#: How many of them come at once.
SOME = 6


@pytest.fixture
def desk(delayq_worker: StartWorker, delayq_redis: RedisUnderTest) -> Iterator[Desk]:
    desk = Desk(delayq_worker, delayq_redis.server, delayq_redis.url)
    yield desk
    desk.close()


def listening(
    redis: Redis, pool: str, desk: Desk, delayq_worker: StartWorker
) -> tuple[WorkerProcess, set[str]]:
    """Start a worker with gossip; return it, and the channels and patterns to which it listens."""
    with redis.monitor() as monitor:
        worker = delayq_worker(
            "tests.apps.ending_tasks:app",
            pool=pool,
            extra_args=["--queues=celery,aside", "--without-mingle"],
            env={"APP_LEDGER": desk.ledger_url, "APP_SETTINGS": "{}"},
            result_backend=desk.ledger_url,
            loglevel="INFO",
        )
        desk.workers.append(worker)
        worker.wait_log("dispatcher started")
        # Patterns and channels.
        wait_until(lambda: redis.pubsub_numpat() >= 2 and len(redis.pubsub_channels()) >= 3)
        redis.echo("done")
        said = iter(monitor.next_command, None)
        words: set[str] = set()
        for each in said:
            command, _, rest = each["command"].partition(" ")
            if command == "ECHO":
                return worker, words
            if command in ("SUBSCRIBE", "PSUBSCRIBE"):
                words.update(rest.split())
    raise AssertionError("not reached")


@pytest.mark.parametrize("pool", ["threads", "prefork", "solo", "gevent"])
def test_garbage_on_the_channels(
    desk: Desk, redis: Redis, delayq_worker: StartWorker, pool: str
) -> None:
    worker, channels = listening(redis, pool, desk, delayq_worker)
    assert channels == {*CHANNELS}

    for n in range(0, len(GARBAGE), SOME):
        [id] = desk.send(1, queue="aside", countdown=0.3)
        for channel, garbage in product(CHANNELS.values(), GARBAGE[n : n + SOME]):
            redis.publish(channel, garbage)
        desk.wait_finished([id])

    assert "dispatcher failed" not in worker.log
    assert "resumed" not in worker.log
    assert "Connection to broker lost" not in worker.log
    assert desk.tell(worker, "ending_timers") is not None
    wait_until(lambda: not desk.unfinished(), what="nothing is left")
