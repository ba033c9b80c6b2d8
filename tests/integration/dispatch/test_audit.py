"""What a producer's account can do to the next-due index and the registry holds queues up for
seconds, and no longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import TypeAlias
from urllib.parse import quote

import pytest
from redis import Redis

from celery_delayq.admin import accounts
from celery_delayq.dispatch import audit
from celery_delayq.dispatch.audit import Audit
from celery_delayq.dispatch.dispatcher import Dispatcher
from celery_delayq.dispatch.ready_looks import Registry
from celery_delayq.settings import Limits, Settings
from celery_delayq.store.keys import Keys, Layout
from celery_delayq.store.store import Store
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.transport.test_refusals import HANDSHAKE
from tests.lua.bench import Bench, bench, bodies, entry, labelled, override_limit
from tests.support import TIMEOUT
from tests.support.proxy import Fault, Proxy
from tests.support.replies import REPLIES

pytestmark = pytest.mark.each_server

KEYS = Keys()

#: What an account can do that has the rules of a producer of another queue.
HARMS: dict[str, Callable[[Redis], object]] = {
    "far behind": lambda client: client.zadd(KEYS.next_due, {"q": 10**16}),
    "infinitely far behind": lambda client: client.zadd(KEYS.next_due, {"q": float("inf")}),
    "out of the index": lambda client: client.zrem(KEYS.next_due, "q"),
    "no index": lambda client: client.unlink(KEYS.next_due),
    "an index of another type": lambda client: (
        client.unlink(KEYS.next_due),
        client.hset(KEYS.next_due, "q", 1),
    ),
    "no registry": lambda client: client.unlink(KEYS.queues, KEYS.next_due),
    "a registry of another type": lambda client: (
        client.unlink(KEYS.queues, KEYS.next_due),
        client.sadd(KEYS.queues, "q"),
    ),
    "names that are none": lambda client: client.zadd(
        KEYS.next_due, {b"\xff": 0, "": 1, "nobody": 2, "x" * 100_000: 3}
    ),
}


#: The definition of a limit of the code of the dispatcher's process.
API = "0 1 2 0"


@contextmanager
def dispatching(port: int) -> Iterator[Dispatcher]:
    """A dispatcher of a process that consumes ``q``."""
    store = Store(Redis(port=port), KEYS, Layout())
    settings = Settings(dispatch_interval=0.1)
    one = Dispatcher(store, settings, consumed=lambda: ["q"], limits={"api": API})
    one.start()
    yield one
    one.stop()
    one.join()


@pytest.fixture
def dispatcher(delayq_redis: RedisUnderTest, soon: None) -> Iterator[Dispatcher]:
    with dispatching(delayq_redis.port) as one:
        yield one


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Audits come soon, and look at all processes."""
    monkeypatch.setattr(audit, "AUDIT_SECONDS", 0.2)
    monkeypatch.setattr(audit, "REGISTER_SECONDS", 0.2)
    monkeypatch.setattr(audit, "AUDITED_PROCESSES", 1000)


@pytest.mark.parametrize("harm", HARMS)
def test_a_queue_goes_on(
    harm: str, dispatcher: Dispatcher, store: Store, delayq_redis: RedisUnderTest
) -> None:
    store.register("q")
    wait_until(
        lambda: dispatcher.tally.last_look and dispatcher.tally.last_look.queues, what="a look"
    )
    rules = accounts.rules("producer", ["another"])
    store.client.execute_command("ACL", "SETUSER", "producer", "on", ">pw", *rules)
    store.schedule("q", entry("e", 1500, relative=True))
    with Redis(port=delayq_redis.port, username="producer", password="pw") as producer:
        HARMS[harm](producer)

    assert store.client.brpop("q", timeout=TIMEOUT) == (b"q", b'{"id": "e"}')
    wait_until(lambda: "q" in store.registry(), what="the registry has the queue")


#: Numbers of queues and processes.
NUMBERS = count()

#: Tells by the log whether a harm is repaired.
IsRepaired: TypeAlias = Callable[[str], object]


def limited(server: RedisUnderTest) -> Bench:
    """Return a store with a limit, a message with its only permit, and one in the lane."""
    one = bench(server)
    one.define_limit(concurrency=1)
    one.register("q")
    one.put(*(labelled(id, 0, lane="api:") for id in ("a", "b")))
    assert [bodies(one.acquire(number)) != [] for number in ("1", "2")] == [True, False]
    return one


def hide_queue(one: Bench) -> IsRepaired:
    """Take a new queue with an entry out of the index."""
    queue = f"hidden-{next(NUMBERS)}"
    one.schedule(queue, entry("later", 60_000, relative=True))
    one.client.zrem(KEYS.next_due, queue)
    return lambda _: one.client.zscore(KEYS.next_due, queue) is not None


def forget_queue(one: Bench) -> IsRepaired:
    one.client.hdel(KEYS.queues, "q")
    return lambda _: one.client.hexists(KEYS.queues, "q")


def change_type(one: Bench) -> IsRepaired:
    with one.client.pipeline(transaction=True) as pipe:
        pipe.unlink(KEYS.slots)
        pipe.set(KEYS.slots, "not ours")
        pipe.execute()
    return lambda _: one.client.type(KEYS.slots) != b"string"


def forget_definition(one: Bench) -> IsRepaired:
    one.client.hdel(KEYS.limits, "capi")
    return lambda _: one.client.hexists(KEYS.limits, "capi")


def leave_permit(one: Bench) -> IsRepaired:
    """Leave a permit behind, as a process of an older version does."""
    permit = f"api:\0q\0gone-{next(NUMBERS)}\0m"
    one.client.zadd(KEYS.permits, {permit: 0})
    return lambda _: one.client.zscore(KEYS.permits, permit) is None


def forget_lane(one: Bench) -> IsRepaired:
    """Let the lane wait for a permit, without the note that wakes it."""
    with one.client.pipeline(transaction=True) as pipe:
        pipe.zadd("{q}:lanes", {"api:": float("inf")})
        pipe.unlink(KEYS.blocked_lanes, KEYS.freed_lanes, "{q}:lanes_wake")
        pipe.execute()
    return lambda _: one.client.exists("{q}:lanes_wake")


def lease_without_permit(one: Bench) -> IsRepaired:
    """Lease a message as a process of an older version does."""
    id = f"old-{next(NUMBERS)}"
    one.define_limit("wide", concurrency=1000)
    one.put(labelled(id, 0, lane="wide:"))
    assert bodies(one.acquire(who=id))
    assert one.client.zrem(KEYS.permits, f"wide:\0q\0{id}\0n-{id}")
    return lambda log: f"process {id} has messages of it that do not count" in log


#: All calls of an audit, each with a harm that it helps to repair.
CALLS: dict[str, Callable[[Bench], IsRepaired]] = {
    "repair/types": change_type,
    "HSETNX": forget_queue,
    "HMGET": forget_definition,
    "HSET": forget_definition,
    "HGETALL": hide_queue,
    "dispatch/planned_looks": hide_queue,
    "ZADD": hide_queue,
    "ZSCAN": leave_permit,
    "repair/permits": leave_permit,
    "EXISTS": forget_lane,
    "limits/forgotten_lanes": forget_lane,
    "ZRANGE": lease_without_permit,
    "limits/without_permits": lease_without_permit,
}

#: The requests of an audit, where a dispatcher makes the same call for other reasons.
REQUESTS = {
    "EXISTS": b"EXISTS\r\n$9\r\n{q}:lanes\r\n",
    "ZRANGE": b"ZRANGE\r\n$10\r\n{q}:leases\r\n",
}


def wait_repaired(is_repaired: IsRepaired, caplog: pytest.LogCaptureFixture, name: str) -> None:
    wait_until(lambda: is_repaired(caplog.text), TIMEOUT, f"the repair after {name}")


def test_the_table_has_all_calls_of_an_audit(
    monkeypatch: pytest.MonkeyPatch, delayq_redis: RedisUnderTest
) -> None:
    monkeypatch.setattr(audit, "AUDIT_SECONDS", 0.0)
    monkeypatch.setattr(audit, "REGISTER_SECONDS", 0.0)
    one = limited(delayq_redis)
    for harm in reversed(CALLS.values()):  # no script works with a key of another type
        harm(one)
    with Proxy(delayq_redis.port) as proxy, Redis(port=proxy.port) as client:
        store = Store(client, KEYS, Layout())
        look = store.next_queue()

        Audit(Registry(0.0), lambda: ["q"], {"api": API}).note_look(store, look, on_duty=True)

        assert {*proxy.traffic} - HANDSHAKE == {"dispatch/next_queue", *CALLS}


@pytest.mark.full
@pytest.mark.parametrize("call", CALLS)
def test_a_dispatcher_outlives_each_refusal_of_an_audit(
    soon: None, caplog: pytest.LogCaptureFixture, delayq_redis: RedisUnderTest, call: str
) -> None:
    """An audit that is refused is made again, and repairs what it then finds."""
    one, request = limited(delayq_redis), REQUESTS.get(call, call)
    with Proxy(delayq_redis.port) as proxy, dispatching(proxy.port) as dispatcher:
        for name, answer in REPLIES.items():
            rule = proxy.on(request, Fault.REFUSE, answer=answer)
            is_repaired = CALLS[call](one)
            assert rule.fired.wait(TIMEOUT), name
            wait_repaired(is_repaired, caplog, name)
        assert dispatcher.is_alive()


@pytest.mark.full
def test_a_dispatcher_outlives_the_refusal_of_one_queue(
    soon: None, caplog: pytest.LogCaptureFixture, delayq_redis: RedisUnderTest
) -> None:
    """An account may not read one of the queues: then each is asked alone."""
    one = limited(delayq_redis)
    with Proxy(delayq_redis.port) as proxy, dispatching(proxy.port):
        for name, answer in REPLIES.items():
            for nth, each in enumerate((REPLIES["NOPERM"], answer), start=1):
                rule = proxy.on("dispatch/planned_looks", Fault.REFUSE, nth=nth, answer=each)
            is_repaired = hide_queue(one)
            assert rule.fired.wait(TIMEOUT), name
            wait_repaired(is_repaired, caplog, name)


def test_without_limits_an_audit_is_one_call(
    monkeypatch: pytest.MonkeyPatch, delayq_redis: RedisUnderTest, store: Store
) -> None:
    monkeypatch.setattr(audit, "AUDIT_SECONDS", 0.0)
    store.schedule("q", entry("later", 60_000, relative=True))
    auditor = Audit(Registry(600.0), lambda: ["q"])

    def commands() -> list[str]:
        """Return what clients send, and what scripts call."""
        found = []
        with Redis(port=delayq_redis.port, decode_responses=True).monitor() as watcher:
            auditor.note_look(store, look, on_duty=True)
            store.client.echo("last")
            while (seen := watcher.next_command())["command"] != "ECHO last":
                found.append(f"{seen['client_type']} {seen['command'].partition(' ')[0]}")
        return found

    look = store.next_queue()
    commands()  # the first one reads the registry, and loads the script

    inside = ["lua EXISTS", "lua ZRANGE", "lua ZSCORE", "lua HEXISTS"]
    assert commands() == ["tcp EVALSHA", *inside]


def test_a_lost_permit_comes_back(dispatcher: Dispatcher, store: Store) -> None:
    """An older process has ended the lease."""
    store.register("q")
    store.client.zadd(KEYS.permits, {"api:\0q\0gone\0m": 0})

    wait_until(lambda: not store.client.exists(KEYS.permits), what="the permit is given back")


#: What may happen to the shared keys of lanes.
LOSSES: dict[str, Callable[[Redis, str], object]] = {
    "deleted": lambda client, key: client.unlink(key),
    "of another type": lambda client, key: (client.unlink(key), client.set(key, "not ours")),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("key", [KEYS.permits, KEYS.blocked_lanes, KEYS.freed_lanes])
@pytest.mark.parametrize("is_freed", [True, False], ids=["a permit is back", "a permit comes back"])
def test_lanes_go_on_after_a_loss_of_a_shared_key(
    delayq_redis: RedisUnderTest,
    soon: None,
    key: str,
    loss: str,
    is_freed: bool,
) -> None:
    one = limited(delayq_redis)
    call = one.leases.ack_call("q", "me", {"1:1": b""}, has_permits=True)
    if is_freed:
        assert one.leases.dead_letter("q", "me", "1:1", "a", "rejected")
        one.client.zrem(KEYS.next_due, "q")
    LOSSES[loss](one.client, key)
    if not is_freed:
        assert one.run(call) == [1, 1]
    one.client.unlink("{q}:lanes_wake", "{q}:wake")

    with dispatching(delayq_redis.port):
        wait_until(lambda: one.client.exists("{q}:lanes_wake"), what="the lane is woken")

    assert bodies(one.acquire("3"))


def test_a_process_that_takes_no_permits_is_logged(
    dispatcher: Dispatcher, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """A process of an older version, beside one of this version."""
    store.register("q")
    store.task_limits.announce({"a%20b": "0 1 9 0", "off": "0 1 9 0"})
    override_limit(store, "off", "none")
    sent = {
        "me": [("mine", "a%20b:"), ("another", "")],
        "new": [("new", "a%20b:"), ("no limit now", "off:"), ("gone", "old:")],
        "older": [("older", "a%20b:k"), ("its other", "a%20b:k")],
    }
    for who, messages in sent.items():
        for id, lane in messages:
            call = store.schedule_call("q")
            call.add(labelled(id, 0, lane=lane))
            store.run(call)
        acquired = store.leases.acquire("q", who, 600.0, "1", len(messages), has_limits=True)
        assert len(acquired.messages) == len(messages)
    for id in ("older", "its other"):
        assert store.client.zrem(KEYS.permits, f"a%20b:k\0q\0{id}\0n-{quote(id)}")

    def lines() -> list[str]:
        return [each.message for each in caplog.records if "does not hold" in each.message]

    wait_until(lines, what="the warning")
    assert len(lines()) == 1
    assert lines()[0].startswith("limit 'a b' does not hold: process older has messages of it")


def test_limits_that_are_gone_come_back_and_those_of_newer_code_stay(
    monkeypatch: pytest.MonkeyPatch, delayq_redis: RedisUnderTest, store: Store
) -> None:
    monkeypatch.setattr(audit, "REGISTER_SECONDS", 0.2)
    with dispatching(delayq_redis.port):
        wait_until(lambda: store.client.hget(KEYS.limits, "capi") == API.encode(), what="it comes")
        store.client.unlink(KEYS.limits)
        wait_until(lambda: store.client.exists(KEYS.limits), what="it comes back")

        store.client.hset(KEYS.limits, "capi", "0 1 9 0")
        store.client.unlink(KEYS.queues)
        wait_until(lambda: store.client.exists(KEYS.queues), what="the next registration")
        assert store.client.hget(KEYS.limits, "capi") == b"0 1 9 0"


@pytest.mark.parametrize("rate", [0.1, 0.0])
def test_a_queue_is_late_unless_its_rate_holds_it_up(rate: float, store: Store) -> None:
    layout = Layout(limits=Limits(promote_rate=rate))
    for id in ("one", "two"):
        store.schedule("q", entry(id, 1, relative=True))
    now = store.now_ms()
    wait_until(lambda: store.now_ms() > now + 1, what="both are due")
    assert store.promote("q", layout, 1).moved == 1
    store.client.zadd(KEYS.next_due, {"q": now + 9_000})

    late = store.announce_missing([("q", layout)], now)

    assert late == ([] if rate else ["q"], False)


def test_one_call_audits_many_queues(store: Store, delayq_redis: RedisUnderTest) -> None:
    queues = [(f"q{number}", Layout()) for number in range(audit.AUDITED_QUEUES)]
    for queue, _ in queues:
        store.schedule(queue, entry(queue, 60_000, relative=True))
    now = store.now_ms()
    assert store.announce_missing(queues, now) == ([], False)
    sent = 0
    with Redis(port=delayq_redis.port, decode_responses=True).monitor() as watcher:
        assert store.announce_missing(queues, now) == ([], False)
        store.client.echo("last")
        while (seen := watcher.next_command())["command"] != "ECHO last":
            sent += seen["client_type"] != "lua"
    assert sent == 1

    store.client.zrem(KEYS.next_due, "q7", "q49")

    assert store.announce_missing(queues, now) == (["q7", "q49"], False)


def test_an_account_audits_the_queues_that_it_may_read(
    store: Store, delayq_redis: RedisUnderTest
) -> None:
    for queue in ("mine", "other"):
        store.schedule(queue, entry(queue, 60_000, relative=True))
    store.client.unlink(KEYS.next_due)
    rules = accounts.rules("dispatcher", ["mine"])
    store.client.execute_command("ACL", "SETUSER", "mine", "on", ">pw", *rules)
    with Redis(port=delayq_redis.port, username="mine", password="pw") as client:
        its = Store(client, KEYS, Layout())

        late = its.announce_missing([("mine", Layout()), ("other", Layout())], its.now_ms())

    assert late == (["mine"], False)
