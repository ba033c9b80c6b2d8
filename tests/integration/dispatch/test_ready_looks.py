"""Dispatchers of a fleet look at ready lists for all idle consumers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
from kombu import Connection, Consumer, Queue
from redis import Redis

from celery_delayq.dispatch import ready_looks
from celery_delayq.dispatch.ready_looks import FLEET_LOOK_SECONDS, ReadyLooks, Registry
from celery_delayq.store.keys import Layout
from celery_delayq.store.store import Store
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from celery_delayq.transport.idle import LONG_WAIT_SECONDS
from tests.integration.dispatch.conftest import dispatchers

pytestmark = pytest.mark.each_server

CLOCK = "delayq:clock"

Take = Callable[[Any], Any]


class Idle:
    """A consumer in a thread, which waits in Redis."""

    def __init__(self, url: str, take: Take, queues: tuple[str, ...], **settings: Any) -> None:
        self._url, self._take, self._queues = url, take, queues
        self._options = {"delayq": settings}
        self._ending = threading.Event()
        self._more: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def consume(self, queue: str) -> None:
        """Consume one more queue, in the thread of the consumer, as a worker does."""
        self._more.append(queue)

    def end(self) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        with Connection(self._url, transport_options=self._options) as connection:
            channel = connection.channel()
            queues = [Queue(name) for name in self._queues]
            with Consumer(channel, queues, on_message=self._take, prefetch_count=1) as consumer:
                while not self._ending.is_set():
                    while self._more:
                        consumer.add_queue(Queue(self._more.pop()))
                        consumer.consume()
                    with suppress(TimeoutError):
                        connection.drain_events(timeout=0.05)


@contextmanager
def fleet(
    url: str, size: int, take: Take, queues: tuple[str, ...] = ("a",), **settings: Any
) -> Iterator[list[Idle]]:
    with ExitStack() as stack:
        wait_until(lambda: not dispatchers(), what="those of earlier tests have ended")
        stack.callback(wait_until, lambda: not dispatchers(), what="all dispatchers have ended")
        started = [Idle(url, take, queues, **settings) for _ in range(size)]
        for each in started:
            stack.callback(each.end)
        yield started


def waiting(redis: Redis, seconds: float) -> int:
    """Return how many clients wait in Redis for so long at least."""
    return sum(
        "b" in client["flags"] and int(client["idle"]) >= seconds for client in redis.client_list()
    )


def calls(redis: Redis, name: str) -> int:
    """Return how often clients and scripts called a command."""
    found = redis.info("commandstats").get(f"cmdstat_{name}", {"calls": 0})
    return int(found["calls"])


def wait_for(got: list[float], number: int) -> None:
    wait_until(lambda: len(got) == number, what="it is taken")


@pytest.fixture
def stock_url(delayq_redis: RedisUnderTest) -> str:
    return delayq_redis.url


@pytest.fixture
def got() -> list[float]:
    return []


@pytest.fixture
def take(got: list[float]) -> Take:
    def note(message: Any) -> None:
        got.append(time.monotonic())
        message.ack()

    return note


def push(redis: Redis, url: str, queue: str = "a") -> None:
    """Push a message as a stock producer does."""
    with Connection(url) as stock:
        stock.Producer().publish("x", routing_key=queue)


@pytest.mark.parametrize("size", [1, 4])
def test_what_stock_producers_push_starts_within_a_look_of_the_fleet(
    size: int, got: list[float], take: Take, delayq_broker_url: str, redis: Redis, stock_url: str
) -> None:
    with fleet(delayq_broker_url, size, take):
        wait_until(lambda: waiting(redis, 2) == size, what="all leave it to the fleet")
        for number in range(1, 4):
            push(redis, stock_url)
            wait_for(got, number)
            wait_until(lambda: not redis.exists("{a}:wake"), what="the sign is taken")


def test_an_idle_consumer_of_a_fleet_sends_few_commands(
    take: Take, delayq_broker_url: str, redis: Redis
) -> None:
    size = 4
    with fleet(delayq_broker_url, size, take):
        wait_until(lambda: waiting(redis, 2) == size, what="all leave it to the fleet")
        began = time.monotonic()
        redis.config_resetstat()
        wait_until(lambda: calls(redis, "exists") >= 4, what="the fleet has looked four times")
        waits, looks = calls(redis, "brpop"), calls(redis, "exists")
        seconds = time.monotonic() - began

    assert waits <= size * (1 + seconds / LONG_WAIT_SECONDS)
    assert looks <= seconds / FLEET_LOOK_SECONDS + 1 + size


def test_one_message_wakes_one_of_many_idle_consumers(
    got: list[float], take: Take, delayq_broker_url: str, redis: Redis, stock_url: str
) -> None:
    size = 12
    with fleet(delayq_broker_url, size, take):
        wait_until(lambda: waiting(redis, 2) == size, what="all leave it to the fleet")
        began = time.monotonic()
        redis.config_resetstat()
        push(redis, stock_url)
        wait_for(got, 1)
        wait_until(lambda: waiting(redis, 0) == size, what="all wait again")
        waits, seconds = calls(redis, "brpop"), time.monotonic() - began

    # The one that was woken waits again; waits of others may have ended meanwhile.
    assert waits <= 1 + 2 + size * int(seconds / (LONG_WAIT_SECONDS / 2))


def test_the_next_look_comes_though_the_dispatcher_whose_turn_it_was_is_lost(
    got: list[float], take: Take, delayq_broker_url: str, redis: Redis, stock_url: str
) -> None:
    with fleet(delayq_broker_url, 2, take):
        wait_until(lambda: waiting(redis, 2) == 2, what="all leave it to the fleet")
        # As if it had been killed after it had been told to look.
        redis.hset(CLOCK, "ready_looked", redis.time()[0] * 1000)
        push(redis, stock_url)
        wait_for(got, 1)


def test_a_queue_that_is_consumed_later_is_not_kept_waiting(
    got: list[float], take: Take, delayq_broker_url: str, redis: Redis, stock_url: str
) -> None:
    with fleet(delayq_broker_url, 1, take) as [consumer]:
        wait_until(lambda: waiting(redis, 2) == 1, what="it leaves it to the fleet")
        with Connection(delayq_broker_url) as connection:
            connection.Producer().publish("x", routing_key="b", declare=[Queue("b")])
        consumer.consume("b")
        wait_for(got, 1)

    assert not [*redis.scan_iter("delayq:interrupt:*")]


@pytest.mark.parametrize("settings", [{"dispatch": False}, {"block_timeout": 0.5}])
def test_without_a_dispatcher_of_its_own_a_consumer_looks_itself(
    settings: dict[str, Any],
    got: list[float],
    take: Take,
    delayq_broker_url: str,
    redis: Redis,
    stock_url: str,
) -> None:
    with fleet(delayq_broker_url, 1, take, **settings):
        wait_until(lambda: waiting(redis, 0) == 1, what="it waits")
        push(redis, stock_url)
        wait_for(got, 1)
        assert waiting(redis, 2) == 0


@pytest.fixture
def poor_url(delayq_broker_url: str, redis: Redis) -> Iterator[str]:
    """The URL of an account that may not look at one of the queues."""
    redis.hset("delayq:queues", "foreign", Layout().text)
    redis.execute_command(
        *("ACL", "SETUSER", "poor", "on", ">x", "allchannels", "+@all"),
        *("~delayq:*", "~{a}:*", "~a", "~a\x06*", "~_kombu*", "~unacked*"),
    )
    yield delayq_broker_url.replace("//", "//poor:x@")
    redis.execute_command("ACL", "DELUSER", "poor")


@pytest.mark.parametrize("size", [1, pytest.param(4, marks=pytest.mark.full)])
def test_dispatchers_that_may_not_look_at_all_queues_leave_it_to_each_consumer(
    size: int,
    got: list[float],
    take: Take,
    poor_url: str,
    redis: Redis,
    stock_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # In a large fleet one of them tries again at each moment.
    monkeypatch.setattr(ready_looks, "RETRY_SECONDS", 0.01)
    with fleet(poor_url, size, take):
        wait_until(lambda: waiting(redis, 0) == size, what="all wait")
        redis.config_resetstat()
        wait_until(lambda: calls(redis, "exists") >= 10 * size, what="they look again and again")
        assert waiting(redis, 2) == 0
        push(redis, stock_url)
        wait_for(got, 1)


def test_a_right_to_look_that_is_lost_and_comes_back_is_noticed(
    take: Take, poor_url: str, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ready_looks, "RETRY_SECONDS", 0.01)
    redis.hdel("delayq:queues", "foreign")
    with fleet(poor_url, 2, take):
        wait_until(lambda: waiting(redis, 2) == 2, what="all leave it to the fleet")
        redis.hset("delayq:queues", "foreign", Layout().text)
        wait_until(lambda: not redis.hexists(CLOCK, "ready_looked"), what="nobody may look")
        redis.hdel("delayq:queues", "foreign")
        wait_until(lambda: redis.hexists(CLOCK, "ready_looked"), what="one looks again")


def test_many_queues_are_looked_at_in_portions(store: Store, redis: Redis) -> None:
    names = [f"q{n}" for n in range(2 * ready_looks.PORTION_QUEUES + 1)]
    for name in names:
        store.register(name)
    looks = ReadyLooks(Registry(30.0))
    some = [names[3], names[-1]]
    for name in some:
        redis.lpush(name, "x")
    look = store.next_queue(ready_every=FLEET_LOOK_SECONDS)
    redis.config_resetstat()
    looks.note_look(look)
    portions = 0
    while looks.is_looking:
        looks.go_on(store)
        portions += 1

    assert portions == 3
    assert sorted(name for name in names if redis.exists(f"{{{name}}}:wake")) == sorted(some)
    assert calls(redis, "evalsha") + calls(redis, "eval") == len(some)


def test_a_look_that_an_outage_interrupts_begins_again(store: Store, redis: Redis) -> None:
    """The others take it for done: what is not looked at would wait for the next one."""
    names = [f"q{n}" for n in range(ready_looks.PORTION_QUEUES + 1)]
    for name in names:
        store.register(name)
    looks = ReadyLooks(Registry(30.0))
    looks.note_look(store.next_queue(ready_every=FLEET_LOOK_SECONDS))
    looks.go_on(store)
    for name in names:
        redis.lpush(name, "x")

    looks.note_reconnect()
    while looks.is_looking:
        looks.go_on(store)

    assert sorted(name for name in names if redis.exists(f"{{{name}}}:wake")) == sorted(names)


@pytest.fixture
def full(redis: Redis) -> Iterator[Callable[[], None]]:
    """Have the server take nothing more, until the end of the test."""
    policy = redis.config_get("maxmemory-policy")["maxmemory-policy"]

    def fill() -> None:
        redis.config_set("maxmemory-policy", "noeviction")
        redis.config_set("maxmemory", 1)

    yield fill
    redis.config_set("maxmemory", 0)
    redis.config_set("maxmemory-policy", policy)


def test_a_full_server_has_a_sign_of_what_is_ready(
    store: Store, redis: Redis, full: Callable[[], None]
) -> None:
    store.register("a")
    redis.lpush("a", "x")
    full()

    store.wake_ready([("a", Layout())])

    assert redis.exists("{a}:wake")
