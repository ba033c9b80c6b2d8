"""Cancel against promotion and `leases/acquire`: a task is cancelled or it runs, never both.

Two processes publish tasks that are due within milliseconds, and cancel each at about its due. Two
other processes promote, acquire and run tasks, and first give some of them back.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest
from redis import Redis

from celery_delayq.model.envelope import Due, Entry
from celery_delayq.store.keys import Keys, Layout
from celery_delayq.store.store import Store
from celery_delayq.testing.fixtures import RedisUnderTest
from celery_delayq.utils.message_json import decode
from tests.support.faults.scale import SEED, scaled
from tests.support.keyspace import is_answer
from tests.support.leases import ack

pytestmark = pytest.mark.full

#: Numbers of published tasks; each has one race. The many are those of `make nightly`.
ROUNDS: list[Any] = scaled(
    [pytest.param(6_000), pytest.param(20_000, marks=pytest.mark.nightly)], [pytest.param(300_000)]
)
PAIRS = 2
#: Tasks that are published together and then cancelled.
BATCH = 400
#: The dues of a batch lie within this time (ms), which is about the time to cancel it.
SPREAD = 40

#: A key in a database of its own: no more tasks will be published.
OVER = "over"

LAYOUT = Layout()


def open_store(url: str) -> Store:
    return Store(Redis.from_url(url), Keys(), LAYOUT)


def entry(id: str, due_ms: int, priority: int) -> Entry:
    """Return an entry as a producer sends it."""
    message: dict[str, Any] = {
        "body": "W1tdLCB7fSwge31d",
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {"id": id, "task": "tasks.t", "eta": None, "retries": 0},
        "properties": {"delivery_tag": f"n{id}", "delivery_info": {"priority": priority}},
    }
    return Entry.of(message, priority, Due(due_ms, relative=True))


def cancel_each(url: str, ids: range, seed: int) -> dict[str, str]:
    """Publish tasks, cancel each of them once, and return the outcomes."""
    store, chance = open_store(url), random.Random(seed)
    dead_letters: dict[str, str] = {}
    for start in range(ids.start, ids.stop, BATCH):
        batch = [(str(n), chance.randint(0, SPREAD)) for n in ids[start - ids.start :][:BATCH]]
        call = store.schedule_call("q")
        for id, due in batch:
            call.add(entry(id, due, chance.choice(LAYOUT.steps)))
        store.run(call)
        # In order of due, so that most are cancelled at their due, or in no order.
        batch.sort(key=lambda each: each[1] + chance.choice([0, 0, 0, SPREAD]) * chance.random())
        for some in groups([id for id, _ in batch], chance):
            found = store.control.cancel("q", LAYOUT, some)
            dead_letters.update(zip(some, found, strict=True))
    return dead_letters


def groups(ids: list[str], chance: random.Random) -> Iterator[list[str]]:
    """Yield ids, some alone and some together."""
    while ids:
        number = chance.choice([1, 1, 1, 2, 5, 20])
        yield ids[:number]
        ids = ids[number:]


def run_each(url: str, who: str, seed: int) -> list[str]:
    """Promote and acquire until the end; return the ids of the tasks that ran."""
    store, chance = open_store(url), random.Random(seed)
    over = Redis.from_url(url.replace("/0", "/1"))
    ran: list[str] = []
    leased: list[str] = []
    message_id = 0
    while True:
        ending = over.exists(OVER)
        moved = store.promote("q", LAYOUT, 100).moved
        message_id += 1
        acquired = store.leases.acquire("q", who, 600, str(message_id), chance.choice([1, 5, 30]))
        fields = [field for field, _, _ in acquired.messages]
        if fields and not ending and chance.random() < 0.1:
            store.leases.requeue("q", who, fields, last=chance.random() < 0.5)
        elif fields:
            ran += [decode(message)["headers"]["id"] for _, message, _ in acquired.messages]
            leased += fields
        if len(leased) > 50 or (leased and not fields):
            ack(store, "q", who, leased)
            leased = []
        elif fields:
            continue
        elif ending and not moved and not acquired.first_list and not store.scheduled("q"):
            return ran
        else:
            time.sleep(0)


@pytest.mark.parametrize("rounds", ROUNDS)
def test_no_task_is_cancelled_and_runs_all_the_same(
    rounds: int, delayq_redis: RedisUnderTest, record_property: Callable[[str, object], None]
) -> None:
    """The moments are random: the full tier has fewer of them than `make nightly`."""
    url = delayq_redis.url
    over = Redis.from_url(url.replace("/0", "/1"))
    ids = range(rounds)
    parts = [ids[n * rounds // PAIRS : (n + 1) * rounds // PAIRS] for n in range(PAIRS)]

    with ProcessPoolExecutor(2 * PAIRS, get_context("spawn")) as pool:
        runners = [pool.submit(run_each, url, f"w{n}", SEED + n) for n in range(PAIRS)]
        cancellers = [pool.submit(cancel_each, url, part, SEED + n) for n, part in enumerate(parts)]
        try:
            dead_letters = {
                id: dead_letter for each in cancellers for id, dead_letter in each.result().items()
            }
        finally:
            over.set(OVER, "1")
        ran = Counter(id for each in runners for id in each.result())

    counts = Counter(dead_letters.values())
    cancelled = {id for id, dead_letter in dead_letters.items() if dead_letter in "dm"}
    both = cancelled & ran.keys()
    neither = {str(n) for n in ids} - cancelled - ran.keys()
    told = f"{counts['d']} cancelled, {counts['r']} leased by then, {counts['u']} done by then"
    row = {"published": rounds, "runs": ran.total(), "lost": len(neither), "twice": len(both)}
    record_property("verdict", {**row, "notes": {"cancel": told}})
    print(told)

    assert not both
    assert not neither
    assert max(ran.values()) == 1
    # Every task that could not be cancelled has run.
    assert len(dead_letters) == rounds
    assert {dead_letter for id, dead_letter in dead_letters.items() if id in ran} == {"r", "u"}
    done = counts["d"] + counts["m"]
    assert done > rounds // 50 < counts["r"] + counts["u"], "that was no race"

    kept = {
        b"delayq:queues",
        b"delayq:lease_ends",
        b"delayq:clock",
        b"{q}:leases",
        b"{q}:request_numbers",
        b"{q}:totals",
    }
    left = delayq_redis.client.scan_iter(count=1000)
    assert {key for key in left if not is_answer(key)} <= kept
