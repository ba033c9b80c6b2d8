"""Every script and variant with a key of another type, called again, and on a full server.

Scripts check types before the first write. Those that only move messages work on a full server;
others refuse the whole call.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress

import pytest
from redis.exceptions import ResponseError

from celery_delayq.errors import StoreFull
from celery_delayq.model.envelope import Due, Entry
from celery_delayq.model.script_values import EntryCondition, Swap, to_text
from celery_delayq.store.periodic import EntryTicks, EntryWrite
from celery_delayq.store.repair import StockMessage
from celery_delayq.store.scripting import scripts
from celery_delayq.store.scripting.replies import Unacked
from celery_delayq.store.scripting.scripts import LIMITS
from tests.lua.bench import (
    FAR,
    LEASE,
    QUEUE,
    Bench,
    Recording,
    entry,
    labelled,
    message_of,
    override_limit,
    repeating,
)
from tests.lua.dead_letters import DIED, replay, seed, stored
from tests.lua.leases.test_limits import HOUR
from tests.lua.uniques import owned
from tests.support.keyspace import snapshot
from tests.support.lease_time import go_unwatched
from tests.support.model_state import observed


def make_late(store: Bench) -> None:
    """Make a message ready that is too late to start."""
    store.make_ready(labelled("a", skip_after=1000, unique="dk"), due_ms=store.now_ms())
    store.set_ready_index_due("a", 5)


def leased_and_held(store: Bench) -> None:
    """Lease a message of a lane; another one is held."""
    store.define_limit(concurrency=1)
    store.put(labelled("a", 5, lane="api:"), labelled("b", 5, lane="api:"))
    store.acquire()


def put_two(store: Bench) -> None:
    """Publish a message without a limit and one of a lane in one call."""
    store.put(labelled("c", 0), labelled("d", 5, lane="api:", unique="dk"))


def fire(store: Bench, *entries: Entry) -> None:
    ticks = EntryTicks("tick", "old", "new", 70, "old", 60, [*entries])
    store.run(store.periodic.fire_call(QUEUE, [ticks]))


def write_periodic(store: Bench) -> None:
    store.periodic.write([EntryWrite("tick", "", "old\n{}", 5)])


def push_two_priorities(store: Bench) -> None:
    call = store.ready_call(QUEUE)
    call.add(0, b"a")
    call.add(3, b"b")
    store.run(call)


def seed_and_own(store: Bench) -> None:
    seed(store, "a", "b", queue="p")
    store.put(labelled("c", unique="dk", priority=3))


def replay_two(store: Bench, due_ms: int) -> None:
    one, two = labelled("a", due_ms, priority=3), labelled("b", due_ms)
    replay(store, ("a", DIED, one), ("b", DIED + 1, two), queue="p")


#: By name: steps. The last step is the call under test.
CASES: dict[str, list[Callable[[Bench], object]]] = {
    "schedule/add": [lambda s: s.schedule(QUEUE, entry("a", FAR))],
    "schedule/add for a ready one": [
        lambda s: owned(s, "ready"),
        lambda s: s.put(labelled("new", unique="dk")),
    ],
    "schedule/add for a scheduled one": [
        lambda s: owned(s, "scheduled"),
        lambda s: s.put(labelled("new", unique="dk")),
    ],
    "schedule/push_ready": [push_two_priorities],
    "schedule/forget_unowned": [
        lambda s: s.put(labelled("a", unique="dk"), labelled("a", message_id="second")),
        lambda s: s.client.hset("{q}:unique", "gone", "=gone\0n"),
        lambda s: s.client.zadd("{q}:duplicate_ids", {"gone\0second": 0}),
        lambda s: s.forget_unowned(QUEUE),
    ],
    "schedule/import": [
        lambda s: s.run(s.import_call(QUEUE, [entry("a", FAR)], "token")),
    ],
    "schedule/purge": [
        lambda s: s.schedule(QUEUE, entry("a", FAR)),
        lambda s: s.quarantine(b"deadly"),
        lambda s: s.purge(QUEUE, deleted=True),
    ],
    "dispatch/promote": [
        lambda s: s.make_ready(labelled("b", unique="dk")),
        lambda s: s.overdue("a"),
        lambda s: s.client.zadd("{q}:due", {"no record": 1}),
        lambda s: s.promote(),
    ],
    "dispatch/promote of a paused task": [
        lambda s: s.make_ready(labelled("b", unique="dk")),
        lambda s: s.overdue("a"),
        lambda s: s.pause(),
        lambda s: s.promote(),
    ],
    "dispatch/promote of a resumed task": [
        lambda s: s.overdue("a"),
        lambda s: s.pause(),
        lambda s: s.promote(),
        lambda s: s.resume(),
        lambda s: s.promote(),
    ],
    "dispatch/promote of a late one": [
        lambda s: s.put(labelled("a", skip_after=1000, unique="dk")),
        lambda s: s.become_due("a"),
        lambda s: s.promote(),
    ],
    "dispatch/next_queue": [
        lambda s: s.hold(b"a"),
        lambda s: go_unwatched(s.client, 86_400),
        lambda s: s.next_queue(),
    ],
    "leases/acquire": [
        lambda s: s.push(b"a"),
        lambda s: s.push(b"b", step=6),
        lambda s: s.acquire(),
    ],
    "leases/acquire with something quarantined": [
        lambda s: s.hold(b"a"),
        lambda s: s.push(b"b"),
        lambda s: s.quarantine(b"deadly"),
        lambda s: s.acquire("2"),
    ],
    "leases/acquire of a quarantined one": [
        lambda s: s.quarantine(b"deadly"),
        lambda s: s.acquire(),
    ],
    "leases/acquire of a late one": [make_late, lambda s: s.acquire()],
    "leases/acquire of a cancelled one": [
        lambda s: s.make_ready(labelled("a", unique="dk")),
        lambda s: s.cancel("a"),
        lambda s: s.acquire(),
    ],
    "schedule/add for a lane": [leased_and_held, put_two],
    "schedule/import for a lane": [
        leased_and_held,
        lambda s: s.run(
            s.import_call(QUEUE, [labelled("c", 0), labelled("d", 5, lane="api:")], "token")
        ),
    ],
    "periodic/fire": [write_periodic, lambda s: fire(s, labelled("c", 5), labelled("d", FAR))],
    "periodic/fire for a lane": [
        leased_and_held,
        write_periodic,
        lambda s: fire(s, labelled("c", 5), labelled("d", 5, lane="api:", unique="dk")),
    ],
    "dispatch/promote into a lane": [
        leased_and_held,
        lambda s: s.put(labelled("c", lane="api:")),
        lambda s: s.become_due("c"),
        lambda s: s.promote(),
    ],
    "leases/acquire into a lane": [
        lambda s: s.make_ready(labelled("a", lane="api:", priority=3), due_ms=5),
        lambda s: s.make_ready(labelled("b", lane="api:", unique="dk"), due_ms=5),
        lambda s: s.define_limit(concurrency=1),
        lambda s: s.acquire(has_limits=True),
    ],
    "leases/acquire from a lane": [
        leased_and_held,
        lambda s: s.put(labelled("c", 5, lane="api:", unique="sk")),
        lambda s: s.define_limit(concurrency=3),
        lambda s: s.run_steps(s.task_limits.wake_lanes_steps(QUEUE, "api")),
        lambda s: s.acquire("2", has_limits=True),
    ],
    "leases/acquire of a quarantined one of a lane": [
        lambda s: s.define_limit(concurrency=1),
        lambda s: s.quarantine(message_of(labelled("a", 5, lane="api:"))),
        lambda s: s.acquire(has_limits=True),
    ],
    "leases/ack of one with a permit": [leased_and_held, lambda s: s.ack("1:1")],
    "leases/requeue of one with a permit": [leased_and_held, lambda s: s.requeue("1:1")],
    "leases/replace of one with a permit": [
        leased_and_held,
        lambda s: s.replace(labelled("r", FAR, lane="api:")),
    ],
    "leases/dead_letter of one with a permit": [
        leased_and_held,
        lambda s: s.leases.dead_letter(QUEUE, "me", "1:1", "id", "rejected"),
    ],
    "leases/reclaim_expired of one with a permit": [
        leased_and_held,
        lambda s: s.pass_time(),
        lambda s: s.reclaim_expired(),
    ],
    "control/cancel of a held one": [leased_and_held, lambda s: s.cancel("b")],
    "leases/ack": [
        lambda s: s.hold(b"a", b"b"),
        lambda s: s.delivered(b"a", b"1 0 0"),
        lambda s: s.ack("1:1"),
    ],
    "leases/extend": [
        lambda s: s.hold(b"a"),
        lambda s: s.client.delete("{q}:leases", "delayq:lease_ends"),
        lambda s: s.leases.extend(QUEUE, "me", LEASE),
    ],
    "leases/requeue": [
        lambda s: s.hold(b"a", b"deadly", step=6),
        lambda s: s.delivered(b"deadly", b"0 5 0"),
        lambda s: s.requeue("1:1", "1:2", counted="crashed", max_deliveries=5),
    ],
    "leases/replace": [lambda s: s.hold(b"a"), lambda s: s.replace(entry("r", FAR, priority=3))],
    "leases/replace by a due one": [
        lambda s: s.hold(b"a"),
        lambda s: s.replace(entry("r", 1, priority=3)),
    ],
    "leases/dead_letter": [
        lambda s: s.hold(b"a"),
        lambda s: s.leases.dead_letter(QUEUE, "me", "1:1", "id", "rejected"),
    ],
    "leases/reclaim_expired": [
        lambda s: s.hold(b"a", b"b", step=6),
        lambda s: s.delivered(b"b", b"1 0 0"),
        lambda s: s.pass_time(),
        lambda s: s.reclaim_expired(max_deliveries=2),
    ],
    "leases/reclaim_expired of a quarantined one": [
        lambda s: s.quarantine(b"deadly"),
        lambda s: s.acquire(),
        lambda s: s.pass_time(),
        lambda s: s.reclaim_expired(max_deliveries=1),
    ],
    "leases/use_retry_budget": [
        lambda s: s.control.use_retry_budget("root", 2, "a 0", 60),
    ],
    "control/cancel": [
        lambda s: s.put(labelled("a", unique="dk")),
        lambda s: s.make_ready(labelled("b", unique="dl")),
        lambda s: s.cancel("a", "b"),
    ],
    "control/run_now": [
        lambda s: s.put(labelled("a", unique="dk", priority=3)),
        lambda s: s.run_now("a"),
    ],
    "control/reschedule": [
        lambda s: s.put(labelled("a")),
        lambda s: s.control.reschedule(QUEUE, [("a", Due(FAR + 100), None)]),
    ],
    "control/swap": [
        lambda s: s.put(labelled("a", unique="dk")),
        lambda s: s.control.swap(
            QUEUE,
            [Swap("a", labelled("a", unique="dk").data, labelled("a", unique="dl", task="t").data)],
        ),
    ],
    "control/pause": [lambda s: s.pause(task="t"), lambda s: s.pause()],
    "control/pause, to resume": [lambda s: s.pause(task="t"), lambda s: s.resume()],
    "control/find": [lambda s: s.control.find(QUEUE, ["a"])],
    "scan/range": [
        lambda s: s.put(labelled("a")),
        lambda s: s.control.page(QUEUE, EntryCondition(), 10),
    ],
    "limits/change": [
        lambda s: s.define_limit(interval_us=HOUR),
        lambda s: override_limit(s, "api", "0 1 2 0"),
    ],
    "deadletters/add": [lambda s: s.dead_letters.add(QUEUE, "id", "why", b"bytes")],
    "deadletters/delete": [
        lambda s: seed(s, "a", "b"),
        lambda s: s.dead_letters.delete(QUEUE, [("a", DIED), ("b", DIED + 1)], "t"),
    ],
    "deadletters/page": [lambda s: [*s.dead_letters.pages(QUEUE)]],
    "deadletters/swap": [
        lambda s: seed(s, "a"),
        lambda s: s.dead_letters.swap(QUEUE, [Swap("a", b"", b"new")], "t"),
    ],
    "deadletters/purge_in_place": [
        lambda s: seed(s, "a", "b"),
        lambda s: s.dead_letters.purge_in_place(QUEUE, "-inf", "+inf", b"", "t"),
    ],
    "deadletters/replay": [seed_and_own, lambda s: replay_two(s, FAR)],
    "deadletters/replay of due ones": [seed_and_own, lambda s: replay_two(s, 0)],
    "deadletters/replay into a lane": [
        leased_and_held,
        seed_and_own,
        lambda s: replay(
            s,
            ("a", DIED, labelled("a", 0)),
            ("b", DIED + 1, labelled("b", 5, lane="api:", unique="dl")),
            queue="p",
        ),
    ],
    "deadletters/restore": [
        lambda s: s.dead_letters.restore(QUEUE, [("a", DIED, stored(b"{}"))]),
    ],
    "deadletters/trim": [
        lambda s: seed(s, *"abcd", died_ms=1),
        lambda s: s.dead_letters.trim(QUEUE, 3600.0, 1, 100),
    ],
    "migration/take_from_unacked": [
        lambda s: s.client.hset("unacked", "tag", "[{}, '', 'q']"),
        lambda s: s.client.zadd("unacked_index", {"tag": 5}),
        lambda s: s.take_from_unacked(
            QUEUE, entry("a", FAR), Unacked("unacked", "unacked_index", "tag")
        ),
    ],
    "migration/give_back": [
        lambda s: s.put(entry("a", FAR)),
        lambda s: s.release(StockMessage("a", FAR, entry("a", FAR).data, b"{}")),
    ],
}


#: Cases that store times, which differ between runs.
TIMED: dict[str, list[Callable[[Bench], object]]] = {
    "control/run_now of a held one": [leased_and_held, lambda s: s.run_now("b")],
    "schedule/add for a lane with turns": [
        lambda s: s.define_limit(fair=True),
        lambda s: s.put(labelled("a", 5, lane="api:")),
    ],
    "leases/acquire by a rate": [
        lambda s: s.define_limit(interval_us=HOUR, burst=2, fair=True),
        lambda s: s.put(*(labelled(id, 5, lane="api:") for id in "abc")),
        lambda s: s.acquire(has_limits=True),
    ],
    "limits/wake_lanes": [
        leased_and_held,
        lambda s: s.run_steps(s.task_limits.wake_lanes_steps(QUEUE, "api")),
    ],
    "limits/forgotten_lanes": [
        leased_and_held,
        lambda s: s.acquire("2", has_limits=True),
        lambda s: s.client.delete("delayq:blocked_lanes"),
        lambda s: s.repair_tracking.check_forgotten_lanes(QUEUE, 0, repair=True),
    ],
    "control/revoke": [lambda s: s.control.revoke(60.0, ["a"])],
}


def test_the_cases_call_every_variant_of_a_script(store: Bench) -> None:
    called = set()
    for steps in (CASES | TIMED).values():
        recording = Recording(store)
        store.client.flushall()
        for step in steps:
            step(recording)
        called.add(recording.calls[-1].name)

    variants = {name for name in scripts.names_with_variants() if name.endswith(LIMITS)}
    assert variants <= called


@pytest.mark.parametrize("name", [*CASES, *TIMED])
def test_a_key_of_another_type_is_an_error_before_anything_is_written(
    store: Bench, name: str
) -> None:
    *arrange, call = (CASES | TIMED)[name]
    recording = Recording(store)
    for step in [*arrange, call]:
        step(recording)
    refused: set[str] = set()
    for each in recording.calls[-1].keys:
        key = each if isinstance(each, str) else to_text(each)
        store.client.flushall()
        store.next_queue()
        for step in arrange:
            step(store)
        store.client.delete(key)
        if ":answer:" in key or key.endswith(":quarantine_turn"):
            store.client.rpush(key, "not ours")
        else:
            store.client.set(key, "not ours")
        before = snapshot(store.client)
        with suppress(ResponseError):  # the call does not need this key
            call(store)
            continue
        assert snapshot(store.client) == before, key
        refused.add(key)

    assert refused


@pytest.mark.parametrize("name", [name for name in CASES if name != "schedule/push_ready"])
def test_a_repeat_changes_nothing_more_and_answers_are_kept_for_a_minute(
    store: Bench, name: str
) -> None:
    *arrange, call = CASES[name]
    states = []
    for caller in (store, repeating(store)):
        store.client.flushall()
        store.next_queue()
        for step in arrange:
            step(store)
        call(caller)
        states.append(observed(QUEUE, store.state()))
        assert all(50 <= store.client.ttl(key) <= 60 for key in store.client.keys("*:answer:*"))

    assert states[1] == states[0]


#: Calls that store new data. A full server refuses them.
GROWING = {
    "control/swap",
    "deadletters/restore",
    "deadletters/swap",
    "leases/use_retry_budget",
    "periodic/fire",
    "periodic/fire for a lane",
    "schedule/add",
    "schedule/add for a lane",
    "schedule/add for a ready one",
    "schedule/import",
    "schedule/import for a lane",
    "schedule/push_ready",
}


@pytest.mark.parametrize("lost", [False, True], ids=["once", "lost reply"])
@pytest.mark.parametrize("name", CASES)
def test_a_full_server_lets_a_call_pass_or_refuses_all_of_it(
    store: Bench, name: str, lost: bool
) -> None:
    *arrange, call = CASES[name]
    caller = repeating(store) if lost else store
    states = []
    for full in (False, True):
        store.client.flushall()
        store.next_queue()
        for step in arrange:
            step(store)
        before = store.state()
        if full:
            store.fill()
        with pytest.raises(StoreFull) if full and name in GROWING else nullcontext():
            call(caller)
        store.make_room()
        states.append(observed(QUEUE, store.state()))

    assert states[1] == (observed(QUEUE, before) if name in GROWING else states[0])
