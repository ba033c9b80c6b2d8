"""Dispatchers: at the due time and not at the next poll, any number of them, whatever happens."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from celery import Celery
from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.dispatch.dispatcher import Dispatcher
from celery_delayq.dispatch.promotion_loop import PromotionLoop
from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.settings import Limits, Settings
from celery_delayq.store.keys import Keys, Layout
from celery_delayq.store.store import Store
from celery_delayq.testing import ManagedProcess, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.conftest import MakeApp, ready
from tests.integration.dispatch.conftest import dispatchers
from tests.lua.bench import entry
from tests.support import TIMEOUT

pytestmark = pytest.mark.each_server

QUEUE = "q"
StartDispatcher = Callable[..., Dispatcher]


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.full)], ids=["own", "loop"])
def loop(request: pytest.FixtureRequest) -> PromotionLoop | None:
    """Return what promotes for the dispatchers of a test, None where each does it itself."""
    return PromotionLoop() if request.param else None


@pytest.fixture
def dispatcher(
    delayq_redis: RedisUnderTest, loop: PromotionLoop | None
) -> Iterator[StartDispatcher]:
    """Start dispatchers, and wait for all to stop after the test."""
    started: list[Dispatcher] = []

    def start(**settings: Any) -> Dispatcher:
        client = Redis(port=delayq_redis.port)
        thread = Dispatcher(
            Store(client, Keys(), Layout()), replace(Settings(), **settings), loop=loop
        )
        started.append(thread)
        thread.start()
        wait_until(
            lambda: delayq_redis.client.pubsub_numsub(Keys().fleet)[0][1] >= len(started),
            what="the dispatcher listens",
        )
        return thread

    yield start
    for thread in started:
        thread.stop()
    # Without a message, a dispatcher that sleeps notices its end after one interval.
    delayq_redis.client.publish(Keys().fleet, "the end")
    for thread in started:
        thread.join()


def popped(store: Store, count: int, key: str = "q") -> list[tuple[bytes, int]]:
    """Pop *count* ready messages, each with the moment of it by Redis' clock in ms."""
    found = []
    for _ in range(count):
        item = store.client.brpop(key, timeout=TIMEOUT)
        assert item is not None
        found.append((item[1], store.now_ms()))
    return found


def test_an_entry_is_promoted_when_it_is_due_and_not_at_the_next_poll(
    store: Store, dispatcher: StartDispatcher
) -> None:
    # No setting allows so long an interval: with it, an entry that waits for a poll never comes.
    dispatcher(dispatch_interval=3600.0, lease=36_000.0)
    dues = {}
    for n in range(5):
        _, due = store.schedule(QUEUE, entry(f"e{n}", 150 + 130 * n, relative=True))
        dues[b'{"id": "e%d"}' % n] = due

    late = [at - dues[message] for message, at in popped(store, 5)]

    assert min(late) >= 0


def test_a_look_at_ready_lists_that_fails_holds_up_no_entry(
    store: Store, dispatcher: StartDispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = threading.Event()

    def fail(*_: object) -> None:
        failed.set()
        raise RuntimeError("a look that fails")

    monkeypatch.setattr(Store, "wake_ready", fail)
    store.register(QUEUE)
    one = dispatcher(dispatch_interval=0.05)
    assert failed.wait(TIMEOUT)
    store.schedule(QUEUE, entry("e", 50, relative=True))

    assert [message for message, _ in popped(store, 1)] == [b'{"id": "e"}']
    assert one.tally.errors


def test_something_earlier_wakes_a_dispatcher_that_sleeps_for_something_later(
    store: Store, dispatcher: StartDispatcher
) -> None:
    dispatcher()
    store.schedule(QUEUE, entry("later", 3_600_000, relative=True))
    _, due = store.schedule(QUEUE, entry("earlier", 200, relative=True))

    [(message, at)] = popped(store, 1)

    assert message == b'{"id": "earlier"}'
    assert at >= due


def test_every_registered_queue_is_served(store: Store, dispatcher: StartDispatcher) -> None:
    dispatcher()
    for n in range(20):
        store.schedule(f"q{n}", entry("e", 100, relative=True))

    wait_until(lambda: all(store.client.llen(f"q{n}") for n in range(20)), what="all are ready")


def test_a_lost_wake_up_costs_one_interval(store: Store, dispatcher: StartDispatcher) -> None:
    dispatcher(dispatch_interval=0.2)
    silent = Store(store.client, Keys(), Layout())
    silent.schedule(QUEUE, entry("a", 10, relative=True))
    popped(store, 1)
    # As if the notification were lost: the next-due index is written behind the dispatcher's back.
    silent.schedule(QUEUE, entry("b", 3_600_000, relative=True))
    due = store.now_ms()
    store.client.zadd("{q}:due", {"b": due})
    store.client.zadd("delayq:next_due", {"q": due})

    [(message, at)] = popped(store, 1)

    assert message == b'{"id": "b"}'
    assert at >= due


def test_twenty_dispatchers_promote_each_entry_once(
    store: Store, dispatcher: StartDispatcher
) -> None:
    for _ in range(20):
        dispatcher(dispatch_batch=10)
    pipe = store.client.pipeline(transaction=False)
    count = 5000
    for n in range(count):
        call = store.schedule_call(QUEUE)
        call.add(entry(f"e{n}", 300 + n % 700, relative=True))
        pipe.execute_command("EVAL", call.script.source, len(call.keys), *call.keys, *call.args)
    pipe.execute()

    messages = {message for message, _ in popped(store, count)}

    assert len(messages) == count
    assert store.client.llen("q") == 0


def test_a_queue_that_cannot_be_promoted_from_does_not_hold_up_the_others(
    store: Store, dispatcher: StartDispatcher, caplog: pytest.LogCaptureFixture
) -> None:
    store.schedule("broken", entry("a", 50, relative=True))
    store.client.set("broken", "no list")
    dispatcher()

    for n in range(3):
        store.schedule(QUEUE, entry(f"e{n}", 100 * n, relative=True))
        popped(store, 1)

    assert "broken" in caplog.text
    assert store.scheduled("broken") == 1
    store.client.delete("broken")
    wait_until(lambda: store.client.llen("broken"), what="it is promoted once it can be")


def test_corrupt_entries_are_reported_and_the_valid_ones_run(
    store: Store, dispatcher: StartDispatcher, caplog: pytest.LogCaptureFixture
) -> None:
    store.schedule(QUEUE, entry("valid", 200, relative=True))
    for n in range(1000):
        store.client.zadd("{q}:due", {f"corrupt-{n}": 1})
    dispatcher()

    assert popped(store, 1)[0][0] == b'{"id": "valid"}'
    wait_until(lambda: "dead_lettered=" in caplog.text, what="they are reported")
    assert len(list(store.dead_letters.all("q"))) == 1000


def test_a_dispatcher_outlives_redis(
    delayq_redis_factory: Callable[..., EmbeddedRedis],
    loop: PromotionLoop | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = delayq_redis_factory(appendfsync="always")
    thread = Dispatcher(Store(server.client(), Keys(), Layout()), Settings(), loop=loop)
    thread.start()
    Store(server.client(), Keys(), Layout()).schedule(QUEUE, entry("a", 500, relative=True))
    server.kill()
    wait_until(lambda: "Redis is away" in caplog.text, what="the dispatcher notices")
    server.start()

    with server.client(socket_timeout=None) as client:
        assert client.brpop("q", timeout=TIMEOUT) == (b"q", b'{"id": "a"}')
    thread.stop()
    thread.join()
    assert caplog.text.count("Redis is away") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_dispatcher_as_a_process_stops_cleanly(
    shop: list[str], app: Celery, redis: Redis, number: signal.Signals
) -> None:
    with ManagedProcess([*shop, "dispatch"]) as process:
        process.wait_log("dispatching")
        app.tasks["tasks.add"].apply_async((1, 2), countdown=0.2)
        wait_until(lambda: ready(redis), what="it is promoted")
        process.send_signal(number)
        assert process.wait(timeout=TIMEOUT) == 0
        assert "stopped: 1 promoted" in process.log


@pytest.mark.parametrize(
    ("limits", "left"), [(Limits(dead_letters_age=0.001), 0), (Limits(dead_letters_max=2), 2)]
)
def test_a_dispatcher_forgets_dead_letters_that_are_too_old_or_too_many(
    dispatcher: StartDispatcher, redis: Redis, limits: Limits, left: int
) -> None:
    redis.hset(Keys().queues, QUEUE, Layout(limits=limits).text)
    dead_letters = Store(redis, Keys(), Layout()).dead_letters
    for number in range(3):
        dead_letters.add(QUEUE, str(number), "why", b"{}")

    dispatcher()

    wait_until(lambda: dead_letters.count(QUEUE) == left, what=f"{left} dead letters")


@pytest.mark.usefixtures("no_dispatchers")
def test_without_dispatch_a_consumer_promotes_nothing(make_app: MakeApp) -> None:
    app = make_app(broker_transport_options={"delayq": {"dispatch": False}})
    with app.connection_for_read() as connection, app.amqp.TaskConsumer(connection.channel()):
        assert not dispatchers()


@pytest.mark.usefixtures("no_dispatchers")
def test_a_consumer_promotes_while_it_consumes_and_no_longer(app: Celery, delayq: DelayQ) -> None:
    with app.connection_for_read() as connection, app.amqp.TaskConsumer(connection.channel()):
        assert len(dispatchers()) == 1
        app.tasks["tasks.add"].apply_async((1, 2), countdown=0.1)
        wait_until(lambda: delayq.count() == 0, what="it is promoted")
    wait_until(lambda: not dispatchers(), what="the dispatcher has stopped")


STARTED = """
import sys
from redis import Redis
from celery_delayq.dispatch.dispatcher import Dispatcher
from celery_delayq.settings import Settings
from celery_delayq.store.keys import Keys, Layout
from celery_delayq.store.store import Store
from celery_delayq.store.scripting import scripts
from celery_delayq.testing import wait_until

client = Redis(port=int(sys.argv[1]))
Dispatcher(Store(client, Keys(), Layout()), Settings()).start()
wait_until(lambda: client.pubsub_numsub(Keys().fleet)[0][1], what="the dispatcher listens")
print(*(script.name for script in scripts._BY_SHA.values()))
"""


def test_a_process_reads_the_scripts_of_due_tasks_before_the_first_is_due(
    delayq_redis: RedisUnderTest,
) -> None:
    command = [sys.executable, "-c", STARTED, str(delayq_redis.port)]

    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=TIMEOUT)

    assert {"dispatch/promote", "leases/acquire", "leases/ack"} <= set(done.stdout.split())
