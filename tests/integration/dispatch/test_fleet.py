"""Several dispatchers: one is on duty, and any other takes over."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from redis import Redis

from celery_delayq.dispatch.dispatcher import Dispatcher
from celery_delayq.settings import Settings
from celery_delayq.store.keys import Keys, Layout
from celery_delayq.store.store import Store
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.lua.bench import QUEUE, entry
from tests.simulation.members import Members
from tests.support import TIMEOUT

pytestmark = pytest.mark.each_server

CLOCK = "delayq:clock"
Start = Callable[[], Dispatcher]


@pytest.fixture
def start(delayq_redis: RedisUnderTest) -> Iterator[Start]:
    """Start dispatchers that count, and wait for all to stop after the test."""
    started: list[Dispatcher] = []

    def one() -> Dispatcher:
        thread = Dispatcher(
            Store(Redis(port=delayq_redis.port), Keys(), Layout()), Settings(lease=60.0)
        )
        started.append(thread)
        thread.start()
        wait_until(
            lambda: (
                delayq_redis.client.pubsub_numsub(Keys().fleet)[0][1]
                >= sum(each.is_alive() for each in started)
            ),
            what="the dispatcher listens",
        )
        return thread

    yield one
    for thread in started:
        thread.stop()
    for thread in started:
        thread.join()


def calls(client: Redis) -> int:
    """Return how many scripts have run."""
    stats = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "eval"))


def promote_one(store: Store) -> None:
    """Publish an entry and wait until it is ready."""
    store.schedule(QUEUE, entry("e", 100, relative=True))
    assert store.client.brpop("q", timeout=TIMEOUT) is not None


def test_dispatchers_off_duty_do_not_aim_at_the_next_entry(store: Store, start: Start) -> None:
    fleet = [start() for _ in range(20)]
    wait_until(lambda: store.client.hexists(CLOCK, "duty"), what="one is on duty")
    time.sleep(1.0)
    before, began = calls(store.client), time.monotonic()

    for _ in range(20):
        promote_one(store)

    seconds = time.monotonic() - began
    # Of each entry its publishing and its promotion, and the looks of all; 20 each before.
    assert calls(store.client) - before <= 20 * 3 + 20 * seconds / 0.3
    # A dispatcher counts after Redis has moved the entry.
    wait_until(lambda: sum(each.tally.promoted for each in fleet) == 20, what="all are counted")


def test_only_the_one_on_duty_is_woken_by_what_is_published(
    store: Store, start: Start, delayq_redis: RedisUnderTest
) -> None:
    def hear() -> int:
        return int(delayq_redis.client.pubsub_numsub(Keys().wake)[0][1])

    fleet = [start() for _ in range(6)]
    wait_until(lambda: hear() == 1, what="the others do not listen any more")

    for _ in range(5):
        promote_one(store)

    # On a busy machine another one may take over.
    wait_until(lambda: hear() == 1, what="one alone listens")
    had = store.client.hget(CLOCK, "duty")
    [lost] = [each for each in fleet if each._id.encode() == had]
    lost.stop()
    lost.join()
    wait_until(lambda: hear() == 1, what="another one listens")
    promote_one(store)


def test_another_one_takes_over_when_the_one_on_duty_is_killed(
    store: Store, delayq_redis: RedisUnderTest
) -> None:
    with ExitStack() as stack:
        fleet = [stack.enter_context(Members(delayq_redis.url, 1)) for _ in range(2)]
        for each in fleet:
            each.wait_ready()
        promote_one(store)
        duty = store.client.hget(CLOCK, "duty").decode()
        fleet.sort(key=lambda each: duty in each.ids)
        other, lost = fleet

        assert duty in lost.ids
        lost.process.kill()
        promote_one(store)
        assert store.client.hget(CLOCK, "duty").decode() in other.ids


def test_a_dispatcher_that_stops_gives_the_duty_back(store: Store, start: Start) -> None:
    first = start()
    wait_until(lambda: store.client.hexists(CLOCK, "duty"), what="it is on duty")
    had = store.client.hget(CLOCK, "duty")

    first.stop()
    first.join()

    assert not store.client.hexists(CLOCK, "duty")
    start()
    wait_until(
        lambda: store.client.hget(CLOCK, "duty") not in (None, had), what="the next one has it"
    )


def test_a_silent_dispatcher_loses_the_duty_though_nothing_is_due(
    store: Store, start: Start
) -> None:
    start(), start()
    store.client.hset(CLOCK, mapping={"duty": "lost", "duty_at": store.now_ms() - 10_000})

    wait_until(
        lambda: store.client.hget(CLOCK, "duty") != b"lost",
        timeout=TIMEOUT,
        what="another one is on duty",
    )


@pytest.fixture
def start_as(delayq_redis: RedisUnderTest) -> Iterator[Callable[[str], Dispatcher]]:
    """Start dispatchers whose accounts have the right to one queue, of the same name, only."""
    client, started = delayq_redis.client, []

    def one(queue: str) -> Dispatcher:
        rights = (
            "allchannels",
            "+@all",
            "~delayq:*",
            f"~{{{queue}}}:*",
            f"~{queue}",
            f"~{queue}\x06*",
        )
        client.execute_command("ACL", "SETUSER", queue, "on", "nopass", *rights)
        redis = Redis(port=delayq_redis.port, username=queue, password="x")
        thread = Dispatcher(Store(redis, Keys(), Layout()), Settings())
        started.append((queue, thread))
        thread.start()
        return thread

    yield one
    for queue, thread in started:
        thread.stop()
        thread.join()
        client.execute_command("ACL", "DELUSER", queue)


def test_a_dispatcher_that_may_not_promote_a_queue_leaves_it_to_one_that_may(
    store: Store, start: Start, start_as: Callable[[str], Dispatcher]
) -> None:
    start_as("q")
    wait_until(lambda: store.client.hexists(CLOCK, "duty"), what="it is on duty")
    start()
    store.schedule("other", entry("e", 100, relative=True))

    assert store.client.brpop("other", timeout=TIMEOUT) is not None
    promote_one(store)


def test_dispatchers_with_rights_to_one_queue_each_promote_all(
    store: Store, start_as: Callable[[str], Dispatcher], caplog: pytest.LogCaptureFixture
) -> None:
    queues = ["a", "b"]
    for queue in queues:
        start_as(queue)
    # Reclaiming, too, is left to those who may.
    store.client.set("{q}:leases", "of no account")
    store.client.zadd(Keys().lease_ends, {"q": 1})

    for n in range(40):
        queue = queues[n % 2]
        store.schedule(queue, entry(str(n), 100, relative=True))
        assert store.client.brpop(queue, timeout=TIMEOUT) is not None

    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert sum("may not promote" in error for error in errors) <= 2
    assert sum("reclaiming" in error for error in errors) == 2
