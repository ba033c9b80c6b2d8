"""Whatever is done with large messages, no request to Redis and no reply is much more than 1 MB."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from celery import Celery
from kombu.messaging import Producer

from celery_delayq import DelayQ
from celery_delayq.admin import repair
from celery_delayq.admin.stock_migration import from_stock, to_stock
from celery_delayq.model.dead_letter import DeadFilter
from celery_delayq.model.scheduled import Filter
from celery_delayq.periodic import policy
from celery_delayq.periodic.firing import TickScheduler, stored
from celery_delayq.settings import Settings
from celery_delayq.store.session import Session
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.conftest import Through
from tests.support.dead_letters import fill, message

#: How many messages there are, and how many characters the argument of each has.
COUNT, SIZE = 12, 200_000

#: Bytes of a message in Redis at most: an argument is packed as JSON, and that as base64.
LENGTH = SIZE * 4 // 3 + 4_000

#: Bytes that a call may have. What does not fit is the last one; the rest are script and keys.
MOST = 1_000_000 + LENGTH + 40_000

#: The same of hashes, whose messages are plain. A server returns all members of a bucket of a hash
#: together, and those of Valkey are large: a bucket of many has less than half of them.
HASH_COUNT, HASH_SIZE = 60, 40_000
MOST_OF_HASH = 1_000_000 + HASH_COUNT // 2 * (HASH_SIZE + 2_000)


class Stage(NamedTuple):
    """What an operation works on: through the proxy, and beside it."""

    app: Celery
    direct: Celery
    redis: RedisUnderTest
    folder: Path

    @property
    def delayq(self) -> DelayQ:
        """Through the proxy."""
        return DelayQ.of(self.app)

    @property
    def file(self) -> str:
        """A file that was exported."""
        return str(self.folder / "messages.jsonl")


class Operation(NamedTuple):
    """How something is prepared, and how it is done; it returns how many messages it met."""

    prepare: Callable[[Stage], object]
    make: Callable[[Stage], int]
    most: int = MOST
    messages: int = COUNT


def argument(n: int, size: int = SIZE) -> str:
    return f"{n:02}" * (size // 2)


def items(queue: str = "celery", **more: Any) -> list[dict[str, Any]]:
    return [{"args": (n, argument(n)), "queue": queue, **more} for n in range(COUNT)]


def schedule_many(delayq: DelayQ, **more: Any) -> int:
    return delayq.schedule_many(items(**more), task="tasks.add").stored


def scheduled(stage: Stage) -> None:
    assert schedule_many(DelayQ.of(stage.direct), countdown=3600) == COUNT


def in_two_queues(stage: Stage) -> None:
    """Half of them in each: a page of several queues is read by name."""
    delayq = DelayQ.of(stage.direct)
    for some in (items()[::2], items("mail")[1::2]):
        delayq.schedule_many(some, task="tasks.add", countdown=3600)


def ready(stage: Stage) -> None:
    schedule_many(DelayQ.of(stage.direct))


def exported(stage: Stage) -> None:
    scheduled(stage)
    DelayQ.of(stage.direct).export_to(stage.file)
    stage.redis.client.flushall()


def dead(stage: Stage) -> None:
    fill(DelayQ.of(stage.direct), COUNT, size=SIZE)


def dead_exported(stage: Stage) -> None:
    dead(stage)
    DelayQ.of(stage.direct).export_dead(stage.file)
    stage.redis.client.flushall()


def dead_and_exported(stage: Stage) -> None:
    dead_exported(stage)
    DelayQ.of(stage.direct).import_dead(stage.file)


def held_by_stock(stage: Stage) -> None:
    held = {
        f"tag{n}": json.dumps([json.loads(message(f"id{n}", size=HASH_SIZE)), "", "celery"])
        for n in range(HASH_COUNT)
    }
    stage.redis.client.hset("unacked", mapping=held)
    stage.redis.client.zadd("unacked_index", dict.fromkeys(held, 1))


def periodic(stage: Stage) -> None:
    for n in range(HASH_COUNT):
        DelayQ.of(stage.direct).periodic.add(
            f"entry{n}", 3600, "tasks.add", args=(n, argument(n, HASH_SIZE)), queue="celery"
        )


def publish_batch(stage: Stage, **options: Any) -> int:
    task = stage.app.tasks["tasks.add"]
    with stage.app.producer_pool.acquire() as producer, producer.batch(max_size=100):
        for n in range(COUNT):
            task.apply_async((n, argument(n)), producer=producer, **options)
    queue = stage.redis.client.zcard("{celery}:due") + stage.redis.client.llen("celery")
    return int(queue)


def fire(stage: Stage) -> int:
    """Fire all periodic entries, as if the time of each had come."""
    found = stage.delayq.periodic.list()
    with TickScheduler(stage.app, stage.delayq.session.stores) as scheduler:
        firings = [
            (entry, firing)
            for entry in found
            if (firing := policy.fire(entry, entry.state.next_tick or 0, stage.app.timezone))
        ]
        return stored(scheduler.fire(stage.delayq.store, firings))


def check(stage: Stage) -> int:
    report = [*repair.check(stage.delayq.session.stores, Settings(), repair=True)][-1]
    assert report.found == 0
    return report.done


OF_HASH = (MOST_OF_HASH, HASH_COUNT)

OPERATIONS = {
    "schedule_many": Operation(lambda _: None, lambda s: schedule_many(s.delayq, countdown=9)),
    "schedule_many, ready": Operation(lambda _: None, lambda s: schedule_many(s.delayq)),
    "Producer.batch": Operation(lambda _: None, lambda s: publish_batch(s, countdown=9)),
    "Producer.batch, ready": Operation(lambda _: None, publish_batch),
    "list": Operation(in_two_queues, lambda s: len(s.delayq.list(limit=100))),
    "entries": Operation(
        in_two_queues, lambda s: len([*s.delayq.entries(Filter(task="tasks.add"))])
    ),
    "export": Operation(scheduled, lambda s: s.delayq.export_to(s.file).entries),
    "import": Operation(exported, lambda s: s.delayq.import_from(s.file).outcomes["scheduled"]),
    "import, dry": Operation(
        exported, lambda s: s.delayq.import_from(s.file, dry_run=True).outcomes["scheduled"]
    ),
    "stats": Operation(ready, lambda s: s.delayq.stats().ready),
    "to stock": Operation(scheduled, lambda s: [*to_stock(Session(s.app))][-1].ready),
    "from stock": Operation(
        held_by_stock, lambda s: [*from_stock(Session(s.app))][-1].ready, *OF_HASH
    ),
    "dead letters": Operation(dead, lambda s: len([*s.delayq.dead_letters(task="shop.mail")])),
    "replay": Operation(dead, lambda s: s.delayq.replay_all(DeadFilter("celery")).done),
    "replay, changed": Operation(
        dead, lambda s: s.delayq.replay_all(DeadFilter("celery"), kwargs={"a": 1}).done
    ),
    "replay, at a rate": Operation(
        dead, lambda s: s.delayq.replay_all(DeadFilter("celery"), rate=1).done
    ),
    "purge": Operation(dead, lambda s: s.delayq.purge_all(DeadFilter(task="shop.mail")).done),
    "export of dead letters": Operation(dead, lambda s: s.delayq.export_dead(s.file).dead_letters),
    "import of dead letters": Operation(
        dead_exported, lambda s: s.delayq.import_dead(s.file).outcomes["restored"]
    ),
    "import of dead letters, dry": Operation(
        dead_exported, lambda s: s.delayq.import_dead(s.file, dry_run=True).outcomes["restored"]
    ),
    "import of dead letters that are there": Operation(
        dead_and_exported,
        lambda s: s.delayq.import_dead(s.file, dry_run=True).outcomes["duplicate"],
    ),
    "archive": Operation(
        dead, lambda s: s.delayq.archive_dead(f"sqlite:///{s.folder}/archive.db").moved
    ),
    "periodic entries": Operation(periodic, lambda s: len(s.delayq.periodic.list()), *OF_HASH),
    "ticks": Operation(periodic, fire, *OF_HASH),
    "fsck of the schedule": Operation(scheduled, lambda s: check(s) // 3),
}


NEEDS_BATCH = pytest.mark.skipif(
    not hasattr(Producer, "batch"), reason="kombu has Producer.batch since 5.7"
)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=NEEDS_BATCH if name.startswith("Producer.batch") else ())
        for name in OPERATIONS
    ],
)
def test_no_call_has_much_more_than_a_megabyte(
    name: str, app: Celery, through: Through, delayq_redis: RedisUnderTest, tmp_path: Path
) -> None:
    operation = OPERATIONS[name]
    proxy, delayq = through()
    stage = Stage(delayq.app, app, delayq_redis, tmp_path)
    operation.prepare(stage)

    assert operation.make(stage) == operation.messages

    assert {call: size for call, size in proxy.largest.items() if size > operation.most} == {}
