"""One thread that promotes for several dispatchers, each of which has a Redis of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis

from celery_delayq.dispatch import promotion_loop
from celery_delayq.dispatch.dispatcher import Dispatcher
from celery_delayq.dispatch.promotion_loop import PromotionLoop
from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.settings import Settings
from celery_delayq.store.keys import Keys, Layout
from celery_delayq.store.store import Store
from celery_delayq.testing import wait_until
from tests.lua.bench import entry
from tests.support import TIMEOUT
from tests.support.proxy import Fault, Proxy
from tests.support.stopped import stopped

pytestmark = pytest.mark.full


class Noting(Dispatcher):
    """A dispatcher that notes which thread promotes."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.threads: list[str] = []

    def _read_promoted(self, reply: object) -> None:
        super()._read_promoted(reply)
        self.threads.append(threading.current_thread().name)


class Unlucky(Noting):
    """A dispatcher that may lose its subscription just before it reads what has come."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.loses = threading.Event()

    def _take_messages(self, pubsub: Any) -> None:
        if self.loses.is_set():
            self.loses.clear()
            self._store.client.client_kill_filter(_type="pubsub")
            wait_until(pubsub.has_data, what="it sees the end of its connection")
        super()._take_messages(pubsub)


@pytest.fixture(autouse=True)
def threads_end_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promotion_loop, "IDLE_SECONDS", 0.2)


@pytest.fixture
def servers(delayq_redis_factory: Callable[..., EmbeddedRedis]) -> list[EmbeddedRedis]:
    return [delayq_redis_factory() for _ in range(3)]


@pytest.fixture
def stores(servers: list[EmbeddedRedis]) -> list[Store]:
    return [Store(each.client(socket_timeout=None), Keys(), Layout()) for each in servers]


@pytest.fixture
def dispatchers(servers: list[EmbeddedRedis]) -> Iterator[list[Noting]]:
    """Start one for each server, and stop them after the test."""
    loop = PromotionLoop()
    started = [
        Noting(Store(each.client(socket_timeout=2.0), Keys(), Layout()), Settings(), loop=loop)
        for each in servers
    ]
    for each in started:
        each.start()
    wait_until(lambda: all(map(hears, servers)), what="all listen")
    yield started
    for each in started:
        each.stop()
    for each in started:
        each.join(TIMEOUT)
    assert not any(each.is_alive() for each in started)


def hears(server: EmbeddedRedis) -> bool:
    with server.client() as client:
        return bool(client.pubsub_numsub(Keys().wake)[0][1])


def promote_one(store: Store, ms: int = 150) -> None:
    """Schedule an entry, due in so many ms, and wait until it is ready."""
    store.schedule("q", entry("e", ms, relative=True))
    assert store.client.brpop("q", timeout=TIMEOUT) is not None


def test_what_is_due_to_several_dispatchers_is_promoted_by_the_loop(
    stores: list[Store], dispatchers: list[Noting]
) -> None:
    for n in range(30):
        for store in stores:
            store.schedule("q", entry(f"e{n}", 2000 + 20 * n, relative=True))

    wait_until(lambda: all(each.tally.promoted == 30 for each in dispatchers), what="all count")
    assert [store.client.llen("q") for store in stores] == [30, 30, 30]
    threads = [name for each in dispatchers for name in each.threads]
    assert threads.count("delayq-promotions") > len(threads) / 2


def test_a_wake_up_is_heard_while_the_loop_waits_for_something_later(
    stores: list[Store], dispatchers: list[Noting]
) -> None:
    for store in stores:
        store.schedule("q", entry("later", 3_600_000, relative=True))

    for store in 3 * stores:
        promote_one(store)


def test_a_server_that_stands_still_holds_up_no_other(
    servers: list[EmbeddedRedis], stores: list[Store], dispatchers: list[Noting]
) -> None:
    for n in range(200):
        stores[0].schedule("q", entry(f"e{n}", 500 + 10 * n, relative=True))
    wait_until(lambda: dispatchers[0].tally.promoted >= 20, what="the first promotes")

    with stopped(servers[0].pid):
        for _ in range(40):
            promote_one(stores[1], 20)

    wait_until(lambda: stores[0].client.llen("q") == 200, TIMEOUT, "the first goes on")


@pytest.mark.parametrize("kind", ["normal", "pubsub"])
def test_a_connection_that_is_cut_is_made_again(
    kind: str, stores: list[Store], dispatchers: list[Noting]
) -> None:
    for _ in range(3):
        promote_one(stores[0], 20)
        stores[0].client.client_kill_filter(_type=kind, skipme=True)

        promote_one(stores[0])
        promote_one(stores[1])


def test_a_subscription_that_is_lost_as_it_hands_over_stops_nothing(
    servers: list[EmbeddedRedis], stores: list[Store], dispatchers: list[Noting]
) -> None:
    keys = Keys("other:")
    store = Store(stores[0].client, keys, Layout())
    client = servers[0].client(socket_timeout=2.0)
    one = Unlucky(Store(client, keys, Layout()), Settings(), loop=dispatchers[1]._loop)
    one.start()
    wait_until(lambda: store.client.pubsub_numsub(keys.wake)[0][1], what="it listens")

    for n in range(5):
        one.loses.set()
        store.schedule("q", entry(f"e{n}", 50, relative=True))
        assert store.client.brpop("other:q", timeout=TIMEOUT)
        promote_one(stores[1], 20)

    assert not one.loses.is_set()
    one.stop()
    one.join(TIMEOUT)


def test_a_refused_queue_is_left_to_its_own_dispatcher(
    stores: list[Store], dispatchers: list[Noting], caplog: pytest.LogCaptureFixture
) -> None:
    stores[0].schedule("broken", entry("a", 50, relative=True))
    stores[0].client.set("broken", "no list")

    for store in 5 * stores:
        promote_one(store, 30)
    wait_until(lambda: "queue=broken" in caplog.text, what="it is logged")
    stores[0].client.delete("broken")
    wait_until(lambda: stores[0].client.llen("broken"), what="it is promoted once it can be")


@pytest.mark.parametrize("fault", Fault)
def test_a_promotion_without_a_reply_is_made_once_more_and_holds_up_no_other(
    fault: Fault, servers: list[EmbeddedRedis], stores: list[Store], dispatchers: list[Noting]
) -> None:
    keys = Keys("other:")
    store = Store(stores[0].client, keys, Layout())
    with Proxy(servers[0].port) as proxy:
        client = Redis(port=proxy.port, socket_timeout=2.0)
        one = Noting(Store(client, keys, Layout()), Settings(), loop=dispatchers[1]._loop)
        one.start()
        wait_until(lambda: store.client.pubsub_numsub(keys.wake)[0][1], what="it listens")
        for n in range(3):
            hit = threading.Event()
            proxy.on("dispatch/promote", fault, seconds=1.5, then=hit.set)
            store.schedule("q", entry(f"e{n}", 50, relative=True))
            assert hit.wait(TIMEOUT)
            for _ in range(5):
                promote_one(stores[1], 20)
            assert store.client.brpop("other:q", timeout=TIMEOUT)
        assert store.client.llen("other:q") == store.scheduled("q") == 0
        one.stop()
        one.join(TIMEOUT)


def test_the_thread_ends_when_no_dispatcher_is_left(
    stores: list[Store], dispatchers: list[Noting]
) -> None:
    promote_one(stores[0])

    for each in dispatchers:
        each.stop()
    for each in dispatchers:
        each.join(TIMEOUT)

    wait_until(
        lambda: not [each for each in threading.enumerate() if each.name == "delayq-promotions"],
        what="the thread has ended",
    )
