"""Each key of ours, of another type or with garbage in it: the other queues go on, workers live.

The keys come from :mod:`celery_delayq.store.keys`, so a new one is here without further words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import pytest
from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.store.keys import Keys
from celery_delayq.testing.fixtures import RedisUnderTest
from celery_delayq.utils.text import spelled
from tests.apps.ending_tasks import Desk
from tests.integration.conftest import MakeApp
from tests.support.cli import CommandLine
from tests.support.foreign import deep
from tests.support.scene import StartWorker

pytestmark = [pytest.mark.each_server, pytest.mark.full]

QUEUE = "celery"
_OWN = Keys().queue(QUEUE)

#: Keys by name: those of all queues, those of a queue, and kombu's.
KEYS = {
    **{name: key for name, key in vars(Keys()).items() if str(key).startswith("delayq:")},
    **{name: key for name, key in asdict(_OWN).items() if name != "own"},
    "leased": _OWN.leased("me").decode(),
    "ready": QUEUE,
    "ready 9": f"{QUEUE}\x06\x169",
    **{name: name for name in ("unacked", "unacked_index", "unacked_mutex")},
}
#: These are names of channels.
for _channel in ("wake", "fleet", "periodic_wake"):
    KEYS.pop(_channel, None)
KEYS["wake"] = _OWN.wake

ZSETS = {
    *("next_due", "lease_ends", "revoked", "periodic_at", "celery_beats", "due", "tasks"),
    *("paused_due", "duplicate_ids", "dead_at", "leases", "readers", "moved", "moved_before"),
    "unacked_index",
}
LISTS = {"wake", "quarantined", "ready", "ready 9"}
STRINGS = {
    *("quarantine_turn", "archiving", "cluster_tags", "unacked_mutex"),
    *("history_index", "history_index_before"),
}
STREAMS = {"history"}

NAMES: list[Any] = [b"\xff", b"", b"a\0b", b"\x1b[2J", b"x" * 2000, b"9" * 400, QUEUE]
VALUES: list[Any] = [
    b"",
    b"\xff",
    b"nan",
    b"-inf",
    b"1e400",
    b"9" * 400,
    b"{}",
    deep(2000),
    b"1 a b",
]
SCORES = [0, -1, 1.5, float("-inf"), float("inf"), 1e300]


def another_type(redis: Redis, name: str, key: str) -> None:
    """Put a key of another type into the place of one."""
    redis.delete(key)
    if name in STRINGS:
        redis.hset(key, "garbage", "garbage")
    else:
        redis.set(key, "garbage")


def garbage(redis: Redis, name: str, key: str) -> None:
    """Add members, fields and values that nobody should write, and spoil those that are there."""
    with redis.pipeline(transaction=False) as pipe:
        if name in ZSETS:
            for number, member in enumerate(NAMES):
                pipe.zadd(key, {member: SCORES[number % len(SCORES)]})
            for member in redis.zrange(key, 0, 3):
                pipe.zadd(key, {member: float("inf")})
        elif name in LISTS:
            for value in VALUES:
                pipe.lpush(key, value)
                pipe.rpush(key, value)
        elif name in STREAMS:
            for value in VALUES:
                pipe.xadd(key, {"r": value})
                pipe.xadd(key, {b"\xff": value})
        elif name in STRINGS:
            pipe.set(key, b"\xff", px=10_000)
        else:
            fields = [*NAMES, *redis.hkeys(key)]
            for number, field in enumerate(fields):
                pipe.hset(key, field, VALUES[number % len(VALUES)])
        pipe.execute(raise_on_error=False)


HARMS: dict[str, Callable[[Redis, str, str], None]] = {
    "another type": another_type,
    "garbage": garbage,
}


@pytest.fixture
def desk(delayq_worker: StartWorker, delayq_redis: RedisUnderTest) -> Iterator[Desk]:
    desk = Desk(delayq_worker, delayq_redis.server, delayq_redis.url)
    yield desk
    desk.close()


#: The other pools make the same calls.
CASES = [
    ("threads", "garbage"),
    ("prefork", "another type"),
    pytest.param("threads", "another type", marks=pytest.mark.nightly),
    pytest.param("prefork", "garbage", marks=pytest.mark.nightly),
]


@pytest.mark.parametrize(("pool", "harm"), CASES)
def test_each_key(desk: Desk, redis: Redis, make_app: MakeApp, pool: str, harm: str) -> None:
    """Each in turn, with one worker: tasks of another queue run, and all can be looked at."""
    worker = desk.worker(pool, args=["--queues=celery,aside"], loglevel="INFO", lease=2)
    desk.wait_finished(desk.send(2, countdown=0.1))
    app = make_app()
    DelayQ.of(app).periodic.add("tick", 3600, "t")
    command, failed = CommandLine(app, shows_foreign=True), dict[str, str]()

    for name, key in KEYS.items():
        kept = redis.dump(key)
        ids = desk.send(1, queue="aside", countdown=0.5)  # a publish may be refused meanwhile
        HARMS[harm](redis, name, key)
        try:
            desk.wait_finished(ids, 100)
            looked = command("fsck", "--json")
            findings = looked.json["findings"]
            shown = [spelled(text) for each in findings for text in each["examples"]]
            assert looked.code in (0, 1), looked
            if redis.type(key) != b"none" and harm == "another type" and name not in READ_BY_NOBODY:
                is_deleted = f"wrong type: {key} is a" in worker.log
                assert is_deleted or any(spelled(key) in text for text in shown), looked
            for each in ("stats", "list", "dead list", "doctor", "paused"):
                assert command(*each.split(), "--json").code in (0, 1), each
        except Exception as exc:
            failed[name] = f"{type(exc).__name__}: {exc}"[:600]
        finally:
            redis.delete(key)
            if kept is not None:
                redis.restore(key, 0, kept, replace=True)
        assert worker.returncode is None, (key, worker.log[-3000:])
    assert not failed, "\n".join(f"{name}: {why}" for name, why in failed.items())
    desk.wait_finished(desk.send(2, countdown=0.1))
    assert "Unrecoverable error" not in worker.log


#: What ``fsck`` does not look at: what expires soon, or belongs to kombu.
READ_BY_NOBODY = {
    *("unacked", "unacked_index", "unacked_mutex"),
}
