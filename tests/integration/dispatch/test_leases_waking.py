"""How soon an idle consumer starts what comes, and how often it looks."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from celery import Celery
from kombu import Connection, Consumer, Queue
from redis import Redis

from celery_delayq.store.scripting.scripts import load
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.apps.lease_tasks import held
from tests.integration.dispatch.conftest import drain
from tests.support import TIMEOUT
from tests.support.scene import Leases

pytestmark = pytest.mark.usefixtures("no_dispatchers")


def starts(leases: Leases) -> dict[str, float]:
    """Return when each task ran first."""
    found: dict[str, float] = {}
    for id, at in leases.runs("id", "at"):
        found.setdefault(id, at)
    return found


def wait_for(leases: Leases, id: str) -> float:
    """Return when a task ran first, once it has."""
    wait_until(lambda: id in starts(leases), what=f"{id} runs")
    return starts(leases)[id]


def test_an_idle_worker_starts_what_stock_producers_send_within_a_look(
    stock: Celery, leases: Leases
) -> None:
    leases.start()
    for n in range(5):
        stock.send_task("lease.add", (1, 1), task_id=f"stock-{n}")
        wait_for(leases, f"stock-{n}")


def test_our_producers_wake_an_idle_worker_at_once(leases: Leases) -> None:
    leases.start("prefork")
    for n in range(8):
        delay = 0.2 * (n % 2)
        leases.app.send_task("lease.add", (1, 1), task_id=f"ours-{n}", countdown=delay or None)
        wait_for(leases, f"ours-{n}")


@pytest.mark.parametrize("pool", ["solo", "prefork"])
def test_a_busy_worker_starts_what_stock_producers_send_when_it_is_free(
    pool: str, app: Celery, stock: Celery, leases: Leases
) -> None:
    leases.start(pool, prefetch=1)
    for n in range(3):
        app.send_task("lease.wait", task_id=f"busy-{n}")
        wait_for(leases, f"busy-{n}")
        stock.send_task("lease.add", (1, 1), task_id=f"stock-{n}")
        leases.client.rpush("go", "")
        wait_for(leases, f"stock-{n}")

    ended = {id: at for id, event, at in leases.runs("id", "event", "at") if event == "ended"}
    began = starts(leases)
    assert all(began[f"stock-{n}"] >= ended[f"busy-{n}"] for n in range(3))


def test_a_worker_with_a_backlog_takes_what_stock_producers_send_in_turn(
    app: Celery, stock: Celery, leases: Leases
) -> None:
    for n in range(6):
        (stock if n % 2 else app).send_task("lease.add", (n, n), task_id=str(n))
    leases.start()

    wait_until(lambda: len(starts(leases)) == 6, what="all have run")
    assert list(starts(leases)) == [str(n) for n in range(6)]


@contextmanager
def consuming(
    url: str, take: Callable[[Any], Any], queues: str = "a", **settings: Any
) -> Iterator[Connection]:
    options = {"delayq": {**settings, "dispatch": False}}
    with Connection(url, transport_options=options) as connection:
        channel = connection.channel()
        with Consumer(channel, [*map(Queue, queues)], on_message=take, prefetch_count=1):
            yield connection


@pytest.mark.parametrize("block_timeout", [0.1, 0.5])
def test_an_idle_consumer_looks_once_in_each_block_timeout(
    block_timeout: float, delayq_broker_url: str, redis: Redis
) -> None:
    with (
        consuming(delayq_broker_url, lambda _: None, block_timeout=block_timeout) as connection,
        redis.monitor() as monitor,
    ):
        drain(connection, 0.1)
        redis.echo("now")
        began, before = time.monotonic(), looks_of(redis)
        while looks_of(redis) < before + 4:
            drain(connection, block_timeout)
        seconds = time.monotonic() - began
        redis.echo("done")
        said = [each["command"] for each in monitored(monitor, "done")]

    said = said[said.index("ECHO now") :]
    scripts = [each for each in said if each.startswith("EVAL")]
    looks, heartbeats = (
        [each for each in scripts if script.sha in each or script.source[:40] in each]
        for script in (load("leases/filled_lists"), load("leases/extend"))
    )
    most = seconds / block_timeout + 1
    assert 4 <= len(looks) <= most
    assert len([each for each in said if each.startswith("BRPOP")]) <= most
    assert len([each for each in said if each.startswith("EXISTS")]) == len(looks)
    # As on stock, kombu restores messages of stock consumers every 10 s.
    others = [each for each in scripts if "unacked_mutex" not in each]
    assert [each[:80] for each in others if each not in (*looks, *heartbeats)] == []


def looks_of(redis: Redis) -> int:
    """Return how often ready lists were looked at."""
    return int(redis.info("commandstats").get("cmdstat_exists", {"calls": 0})["calls"])


@pytest.mark.parametrize("who", ["ours", "stock"])
def test_of_several_queues_only_the_one_that_has_got_something_is_asked(
    who: str, delayq_broker_url: str, delayq_redis: RedisUnderTest, redis: Redis
) -> None:
    got: list[Any] = []
    url = {"ours": delayq_broker_url, "stock": delayq_redis.url}[who]

    def take(message: Any) -> None:
        got.append(message)
        message.ack()

    with (
        consuming(delayq_broker_url, take, "abcdef", block_timeout=0.2) as connection,
        Connection(url) as other,
        redis.monitor() as monitor,
    ):
        until_it_waits(connection, redis)  # each of them was asked once
        redis.echo("now")
        for number in range(1, 6):
            other.Producer().publish("x", routing_key="c")
            while len(got) < number:
                connection.drain_events(timeout=TIMEOUT)
        redis.echo("done")
        said = [each["command"] for each in monitored(monitor, "done")]

    assert asked(said).keys() == {"c"}


def test_while_one_queue_is_full_others_are_asked_when_they_have_got_something(
    delayq_broker_url: str, redis: Redis
) -> None:
    got: list[str] = []
    take = noting(got)

    with (
        consuming(delayq_broker_url, take, "abcdef") as connection,
        Connection(delayq_broker_url) as other,
        redis.monitor() as monitor,
    ):
        until_it_waits(connection, redis)  # each of them was asked once
        redis.echo("now")
        send = other.Producer().publish
        for _ in range(30):
            send("x", routing_key="a")
        while len(got) < 5:
            connection.drain_events(timeout=TIMEOUT)
        send("x", routing_key="c")
        while len(got) < 31:
            connection.drain_events(timeout=TIMEOUT)
        redis.echo("done")
        said = [each["command"] for each in monitored(monitor, "done")]

    assert asked(said).keys() == {"a", "c"}
    assert got.index("c") < 10


def test_empty_queues_are_not_asked_again_where_redis_has_forgotten_all_scripts(
    delayq_broker_url: str, redis: Redis
) -> None:
    got: list[str] = []
    take = noting(got)

    with Connection(delayq_broker_url) as other:
        for _ in range(30):
            other.Producer().publish("x", routing_key="a")
    redis.script_flush()
    with redis.monitor() as monitor, consuming(delayq_broker_url, take, "abcdef") as connection:
        redis.echo("now")
        while len(got) < 30:
            connection.drain_events(timeout=TIMEOUT)
        redis.echo("done")
        said = [each["command"] for each in monitored(monitor, "done")]

    times = asked(said)
    assert times.pop("a") >= 30
    assert times == dict.fromkeys("bcdef", 1)


def noting(queues: list[str]) -> Callable[[Any], None]:
    """Return what takes a message and notes its queue."""

    def take(message: Any) -> None:
        queues.append(message.delivery_info["routing_key"])
        message.ack()

    return take


def until_it_waits(connection: Connection, redis: Redis) -> None:
    """Consume until the consumer waits for a sign; Redis may still list one of an earlier test."""
    others = waiting_connections(redis)
    while waiting_connections(redis) <= others:
        drain(connection, 0.05)


def waiting_connections(redis: Redis) -> set[str]:
    """Return the ids of the connections that wait for a sign."""
    return {each["id"] for each in redis.client_list() if each["cmd"] == "brpop"}


def asked(said: list[str]) -> Counter[str]:
    """Return how often each queue was asked for messages since "now"."""
    acquire = load("leases/acquire")
    calls = [each for each in said[said.index("ECHO now") :] if each.startswith("EVAL")]
    return Counter(
        keys.split("}")[0]
        for call in calls
        if acquire.sha in call or acquire.source[:40] in call
        for keys in re.findall(r" \d+ \{(.*)", call)[:1]
    )


def monitored(monitor: Any, end: str) -> Iterator[dict[str, Any]]:
    """Return the commands until an echo."""
    while (said := monitor.next_command())["command"] != f"ECHO {end}":
        yield said


def test_a_consumer_sees_what_stock_producers_push_within_its_block_timeout(
    delayq_broker_url: str, delayq_redis: RedisUnderTest
) -> None:
    got: list[float] = []

    def take(message: Any) -> None:
        got.append(time.monotonic())
        message.ack()

    with (
        consuming(delayq_broker_url, take, block_timeout=0.2) as connection,
        Connection(delayq_redis.url) as stock,
    ):
        drain(connection, 0.1)
        for number in range(1, 8):
            stock.Producer().publish("x", routing_key="a")
            while len(got) < number:
                connection.drain_events(timeout=TIMEOUT)


def test_what_is_requeued_wakes_another_consumer(delayq_broker_url: str, redis: Redis) -> None:
    first: list[Any] = []
    second: list[float] = []
    with consuming(delayq_broker_url, lambda _: second.append(time.monotonic())) as other:
        with consuming(delayq_broker_url, first.append) as connection:
            connection.Producer().publish("x", routing_key="a")
            while not first:
                connection.drain_events(timeout=TIMEOUT)
            drain(other, 0.2)
            assert second == []
            first[0].requeue()
        while not second:
            other.drain_events(timeout=TIMEOUT)
    assert not held(redis)
