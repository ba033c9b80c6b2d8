"""Limits when something comes between: requeues, quarantine, removed limits, a clock set back."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from celery_delayq.model.script_values import PAUSED_OFFSET_MS
from celery_delayq.store.task_limits import StoredLimit
from tests.lua.bench import FAR, QUEUE, Bench, labelled, message_of, override_limit
from tests.lua.leases.test_limits import HOUR, ids, send, wait_for
from tests.support.lease_time import set_clock_back
from tests.support.leases import ack


def permits(store: Bench) -> list[str]:
    """Return the ids of the messages that have a permit."""
    return [each.split(b"\0")[2].decode() for each in store.client.zrange("delayq:permits", 0, -1)]


def test_without_turns_a_lane_goes_on_by_the_due_of_its_next_entry(store: Bench) -> None:
    store.define_limit(concurrency=2)
    for id, due_ms, lane in (("a", 1, "api:a"), ("b", 2, "api:b"), ("c", 3, "api:a")):
        store.put(labelled(id, FAR, lane=lane))
        store.become_due(id, due_ms)
    send(store, "1", "2", lane="api:a")
    send(store, "3", "4", lane="api:b")
    assert sorted(ids(store.acquire("1"))) == ["1", "2", "3", "4"]
    store.promote()
    assert ids(store.acquire("2")) == []
    store.ack("1:1", "1:2", "1:3", "1:4")

    assert ids(store.acquire("3")) == ["a", "b", "c"]


def test_a_requeued_message_is_in_time_however_long_its_lane_holds_it(store: Bench) -> None:
    store.define_limit(concurrency=1)
    send(store, "a", skip_after=60_000)
    assert ids(store.acquire("1")) == ["a"]
    send(store, "b")
    store.requeue("1:1", last=True)
    assert ids(store.acquire("2")) == ["b"]
    # It is due since 1970: no time that passes makes it later.
    assert store.client.zscore("{q}:due", "a") == PAUSED_OFFSET_MS
    store.ack("2:1")

    assert ids(store.acquire("3")) == ["a"]
    assert store.dead_letters.count(QUEUE) == 0


def test_what_is_too_late_in_its_lane_uses_no_slot(store: Bench) -> None:
    """An expired message has a permit: a worker whose clock is behind runs it."""
    store.define_limit(interval_us=HOUR, burst=2, concurrency=3, fair=True)
    late = labelled("late", FAR, lane="api:", skip_after=1)
    expired = labelled("expired", FAR, lane="api:", expires=1)
    store.put(late, expired, *(labelled(id, FAR, lane="api:") for id in "abc"))
    for due_ms, id in enumerate(("late", "expired", "a", "b", "c"), 1):
        store.become_due(id, due_ms)
    store.promote()

    assert ids(store.acquire("1")) == ["expired", "a", "b"]
    assert permits(store) == ["a", "b", "expired"]
    assert store.dead_letters.count(QUEUE) == 1


@pytest.mark.parametrize("fair", [True, False])
def test_an_expired_message_waits_for_a_permit(store: Bench, fair: bool) -> None:
    store.define_limit(concurrency=1, fair=fair)
    send(store, "a")
    send(store, "expired", expires=1)
    assert ids(store.acquire("1")) == ["a"]
    assert ids(store.acquire("2")) == []

    store.ack("1:1")
    assert ids(store.acquire("3")) == ["expired"]
    assert permits(store) == ["expired"]


def test_what_began_while_a_limit_was_off_counts_when_it_is_on_again(store: Bench) -> None:
    store.define_limit(concurrency=2)
    override_limit(store, "api", "none")
    send(store, *"abcd")
    assert ids(store.acquire("1")) == ["a", "b", "c", "d"]
    override_limit(store, "api", "")
    send(store, "e", "f")

    assert ids(store.acquire("2")) == []
    store.ack("1:1", "1:2", "1:3")
    assert ids(store.acquire("3")) == ["e"]
    assert ids(store.acquire("4")) == []


def test_a_quarantined_message_of_a_blocked_lane_makes_no_worker_free_itself(store: Bench) -> None:
    store.define_limit(concurrency=1)
    send(store, "a")
    assert ids(store.acquire("1", who="you")) == ["a"]
    store.quarantine(message_of(labelled("deadly", 0, lane="api:")))
    store.push(b"1", b"2")

    assert len(store.acquire("1", 1).messages) == 1
    acquired = store.acquire("2", 1)
    assert (len(acquired.messages), acquired.must_make_room) == (1, False)
    store.ack("1:1", "2:1")
    ack(store, QUEUE, "you", ["1:1"])
    store.client.delete("{q}:quarantine_turn")
    acquired = store.acquire("3")
    assert (ids(acquired), acquired.alone) == (["deadly"], True)
    assert permits(store) == ["deadly"]


def test_a_quarantined_message_of_a_blocked_lane_lets_the_next_one_pass(store: Bench) -> None:
    store.define_limit(concurrency=1)
    send(store, "a")
    assert ids(store.acquire("1", who="you")) == ["a"]
    store.client.delete("{q}:leases", "{q}:leased:you")
    store.quarantine(message_of(labelled("deadly", 0, lane="api:")))
    store.quarantine(message_of(labelled("other", 0)))

    assert ids(store.acquire("1")) == []
    store.client.delete("{q}:quarantine_turn")
    assert ids(store.acquire("2")) == ["other"]


def test_the_tasks_of_a_removed_limit_need_no_permit(store: Bench) -> None:
    store.define_limit(concurrency=1)
    send(store, "a", "b", "c")
    assert ids(store.acquire("1")) == ["a"]
    store.client.delete("delayq:limits")
    store.run_steps(store.task_limits.wake_lanes_steps(QUEUE, "api"))

    assert ids(store.acquire("2")) == ["b", "c"]
    assert permits(store) == ["a", "b", "c"]  # the limit may come back


def test_a_lane_that_is_gone_leaves_no_note(store: Bench) -> None:
    store.define_limit(concurrency=1)
    send(store, "a", "b")
    store.acquire("1")
    store.acquire("2")
    store.cancel("b")
    store.ack("1:1")
    store.promote()

    assert store.client.exists("delayq:blocked_lanes", "delayq:freed_lanes", "{q}:lanes") == 0


def test_many_lanes_that_get_a_permit_at_one_time_all_go(store: Bench) -> None:
    store.define_limit(concurrency=1)
    lanes = [f"api:{n:03}" for n in range(450)]
    for lane in lanes:
        store.put(labelled(f"a{lane[4:]}", 0, lane=lane), labelled(f"b{lane[4:]}", 0, lane=lane))
    numbers = map(str, count(1))
    while len(permits(store)) < len(lanes):
        store.acquire(next(numbers), 1000, scarce=1000)
    while store.client.zcount("{q}:lanes", "-inf", "+inf") > store.client.zcard(
        "delayq:blocked_lanes"
    ):
        store.acquire(next(numbers), 1000, scarce=1000)
    fields = [field.decode() for field in store.client.hkeys("{q}:leased:me")]
    for first in range(0, len(fields), 100):
        store.ack(*fields[first : first + 100])

    found: list[str] = []
    looks = 0
    while (looks := looks + 1) <= 20 and store.client.zscore("delayq:next_due", QUEUE):
        store.promote()
        while store.client.lpop("{q}:lanes_wake") is not None:
            found += ids(store.acquire(next(numbers), 1000, scarce=1000))
    assert sorted(found) == [f"b{lane[4:]}" for lane in lanes]


@pytest.mark.parametrize("number", [3, 250])
def test_after_the_clock_was_set_back_lanes_are_tried_again(store: Bench, number: int) -> None:
    store.define_limit(fair=True)
    store.define_limit("slow", interval_us=10 * HOUR, fair=True)
    for n in range(number):
        send(store, f"a{n:03}", lane=f"api:{n}")
    send(store, "s1", "s2", lane="slow:")
    ahead = store.now_ms() * 1000 + HOUR
    for lane in store.client.zrange("{q}:lanes", 0, -1):
        store.client.zadd("{q}:lanes", {lane: ahead})
    store.promote()
    assert ids(store.acquire("1", 1000)) == []

    set_clock_back(store.client, 3600)
    for _ in range(8):
        store.next_queue()
        store.promote()
    assert (store.client.zscore("delayq:next_due", QUEUE) or 0) > store.now_ms()
    found: list[str] = []
    for n in range(2, 8):
        found += ids(store.acquire(str(n), 1000))
    assert sorted(found) == [f"a{n:03}" for n in range(number)]


def test_slots_that_are_free_again_are_forgotten_as_fast_as_they_come(store: Bench) -> None:
    store.define_limit(interval_us=1)
    for number in range(1, 5):
        for n in range(50):
            send(store, f"{number}-{n}", lane=f"api:{number}-{n}")
        assert len(store.acquire(str(number), 1000).messages) == 50

    assert store.client.zcard("delayq:slots") <= 50


#: The shared keys of lanes and permits.
SHARED = ("delayq:permits", "delayq:blocked_lanes", "delayq:freed_lanes", "delayq:next_due")


@pytest.mark.parametrize("key", [*SHARED, "{q}:held", "{q}:lanes", "{q}:lanes_wake"])
def test_a_key_of_another_type_stops_no_acknowledgement(store: Bench, key: str) -> None:
    store.define_limit(concurrency=1)
    send(store, "a", "b")
    store.acquire("1")
    store.acquire("2")
    call = store.leases.ack_call(QUEUE, "me", {"1:1": b""}, has_permits=True)
    store.client.delete(key)
    store.client.set(key, "not ours")

    assert store.run(call) == [1, 1]
    assert store.client.exists("{q}:leased:me", "{q}:leased_index") == 0
    if key in SHARED:
        assert len(store.repair_types()) == 1
        store.promote()
        assert ids(store.acquire("3")) == ["b"]


def test_a_shorter_interval_counts_from_the_change_on(store: Bench) -> None:
    store.define_limit(interval_us=HOUR)
    send(store, "a", "b")
    assert ids(store.acquire("1")) == ["a"]
    assert ids(store.acquire("2")) == []

    store.define_limit(interval_us=20_000, by="o")
    store.run_steps(store.task_limits.wake_lanes_steps(QUEUE, "api"))
    assert wait_for(store, map(str, count(3))) == ["b"]


# -- what people and older code do


@pytest.mark.parametrize("by", ["people", "code", "unset"])
def test_a_lower_rate_lets_no_burst_go(store: Bench, by: str) -> None:
    limits, high, low = store.task_limits, f"{HOUR} 3 0 0", f"{10 * HOUR} 3 0 0"
    if by == "unset":
        limits.announce({"api": low})
        override_limit(store, "api", high)
        store.client.hdel("delayq:limits", "rapi")
    else:
        limits.announce({"api": high})
    send(store, *"abcdefgh")
    assert ids(store.acquire("1")) == ["a", "b", "c"]

    change: dict[str, Callable[[], object]] = {
        "people": lambda: override_limit(store, "api", low),
        "code": lambda: limits.announce({"api": low}),
        "unset": lambda: override_limit(store, "api", ""),
    }
    change[by]()
    store.run_steps(limits.wake_lanes_steps(QUEUE, "api"))
    assert ids(store.acquire("2")) == []
    # One interval later one goes.
    store.client.hincrby("delayq:limits", "rapi", -10 * HOUR)
    store.client.zincrby("delayq:slots", -10 * HOUR, "api:")
    store.run_steps(limits.wake_lanes_steps(QUEUE, "api"))
    assert ids(store.acquire("3")) == ["d"]
    # A change that keeps the rate changes nothing, nor does one after the clock was set back.
    before = store.client.hget("delayq:limits", "rapi")
    override_limit(store, "api", f"{10 * HOUR} 3 9 0")
    assert store.client.hget("delayq:limits", "rapi") == before
    store.client.hincrby("delayq:limits", "rapi", 100 * HOUR)
    store.client.zincrby("delayq:slots", -100 * HOUR, "api:")
    store.run_steps(limits.wake_lanes_steps(QUEUE, "api"))
    assert len(ids(store.acquire("4"))) == 3


def test_a_definition_that_others_have_changed_meanwhile_stays(store: Bench) -> None:
    limits, rate = store.task_limits, f"{HOUR} 3 0 0"
    store.define_limit(concurrency=2)
    before = limits.stored("api")
    override_limit(store, "api", rate)

    for after in (before._replace(override="0 1 1 0"), before._replace(override=""), StoredLimit()):
        assert not limits.change("api", before, after)
    store.define_limit(concurrency=3)
    assert not limits.change("api", StoredLimit(before.of_code, rate), StoredLimit())
    # A call that was repeated, since its reply was lost.
    now = StoredLimit("0 1 3 0", rate)
    assert limits.change("api", before, now)
    assert limits.stored("api") == StoredLimit("0 1 3 0", rate)


def test_a_rate_of_code_that_people_have_overridden_changes_nothing(store: Bench) -> None:
    limits = store.task_limits
    limits.announce({"api": f"{HOUR} 3 0 0"})
    override_limit(store, "api", f"{2 * HOUR} 3 0 0")
    store.client.hdel("delayq:limits", "rapi")

    assert limits.announce({"api": f"{5 * HOUR} 3 0 0"}) == {"api": f"{HOUR} 3 0 0"}
    assert not store.client.hexists("delayq:limits", "rapi")


@pytest.mark.parametrize("is_repeated", [False, True])
def test_the_last_limit_leaves_no_slots(store: Bench, is_repeated: bool) -> None:
    limits = store.task_limits
    limits.announce({"api": f"{HOUR} 3 0 0", "other": f"{HOUR} 1 0 0"})
    send(store, "a")
    assert ids(store.acquire("1")) == ["a"]

    assert limits.change("other", limits.stored("other"), StoredLimit())
    assert store.client.exists("delayq:slots")
    if is_repeated:  # somebody else has removed the last definition
        store.client.delete("delayq:limits")
    assert limits.change("api", limits.stored("api"), StoredLimit())
    assert not store.client.exists("delayq:slots", "delayq:limits")


def test_after_500_intervals_without_workers_no_more_than_a_burst_goes(store: Bench) -> None:
    store.define_limit(interval_us=HOUR, burst=3)
    send(store, *(f"a{n}" for n in range(6)))
    assert len(ids(store.acquire("1"))) == 3
    store.client.zincrby("delayq:slots", -500 * HOUR, "api:")
    store.client.zadd("{q}:lanes", {"api:": 1})

    assert len(ids(store.acquire("2"))) == 3
    send(store, *(f"b{n}" for n in range(500)))
    assert ids(store.acquire("3", 1000)) == []


def test_ten_thousand_that_wait_drain_when_their_limit_is_removed(store: Bench) -> None:
    store.define_limit(concurrency=1, fair=True)
    for first in range(0, 10_000, 500):
        store.put(*(labelled(f"a{n}", 0, lane=f"api:{n % 3}") for n in range(first, first + 500)))
    assert len(store.acquire("1").messages) == 3
    store.client.delete("delayq:limits")
    store.run_steps(store.task_limits.wake_lanes_steps(QUEUE, "api"))

    drained, calls = 3, 1
    while drained < 10_000 and calls < 250:
        calls += 1
        fields = [field for field, _, _ in store.acquire(str(calls), 100).messages]
        drained += len(fields)
        store.ack(*fields)
    assert drained == 10_000
    assert calls <= 110
    assert store.client.exists("{q}:held", "{q}:lanes", "{q}:due", "{q}:entries") == 0


def test_a_concurrency_below_what_runs_leases_none_until_fewer_run(store: Bench) -> None:
    store.define_limit(concurrency=3)
    send(store, *"abcde")
    assert ids(store.acquire("1")) == ["a", "b", "c"]
    store.define_limit(concurrency=2, by="o")

    for number, expected in (("1", []), ("2", ["d"]), ("3", ["e"])):
        store.ack(f"1:{number}")
        assert ids(store.acquire(f"1{number}")) == expected


def test_a_paused_queue_keeps_no_permit_from_another_queue(store: Bench) -> None:
    store.define_limit(concurrency=1)
    send(store, "p1", "p2", "p3", queue="p")
    send(store, "q1", "q2")
    assert ids(store.acquire("1", queue="p")) == ["p1"]
    assert ids(store.acquire("1")) == []
    store.pause(queue=QUEUE)

    ack(store, "p", "me", ["1:1"])
    # The other queue has its turn. It does not wait for a permit any more, so it gets one turn.
    assert wait_for(store, map(str, count(2)), queue="p") == ["p2"]
    [field] = store.client.hkeys("{p}:leased:me")
    ack(store, "p", "me", [field.decode()])
    assert ids(store.acquire("1000000", queue="p")) == ["p3"]
    ack(store, "p", "me", ["1000000:1"])
    store.resume(queue=QUEUE)
    store.promote()
    assert store.client.exists("{q}:lanes_wake")
    assert ids(store.acquire("9")) == ["q1"]


def test_queues_of_a_lane_take_turns(store: Bench) -> None:
    """A worker asks in the step in which it acknowledges, so it is the first that asks."""
    store.define_limit(concurrency=1)
    for first in range(0, 3000, 50):
        store.put(*(labelled(f"q{n}", 0, lane="api:") for n in range(first, first + 50)))
    for queue in ("a", "z"):
        send(store, *(f"{queue}{n}" for n in range(3)), queue=queue)
    numbers = map(str, count(1))
    leased: dict[str, str] = {}
    done = set[str]()
    while not {"a2", "z2"} <= done:
        for queue in ("q", "a", "z"):
            number = next(numbers)
            if queue in leased:
                ack(store, queue, "me", [leased.pop(queue)])
            if found := ids(store.acquire(number, queue=queue)):
                leased[queue] = f"{number}:1"
                done.update(found)

    assert store.client.zcard("{q}:held") + store.client.llen("q") > 0


def test_a_more_urgent_message_is_the_first_of_its_lane(store: Bench) -> None:
    store.define_limit(concurrency=1)
    send(store, "a")
    store.acquire("1")
    send(store, "later", priority=9)
    send(store, "soon", priority=0)
    store.acquire("2")
    store.ack("1:1")

    assert ids(store.acquire("3")) == ["soon"]


def test_a_retry_waits_in_its_lane(store: Bench) -> None:
    store.define_limit(concurrency=1)
    send(store, "a")
    store.acquire("1")
    send(store, "b")
    store.replace(labelled("a", message_id="again", lane="api:"))
    assert permits(store) == []
    assert ids(store.acquire("2")) == ["b"]
    store.become_due("a")
    store.promote()
    assert ids(store.acquire("3")) == []

    store.ack("2:1")
    assert ids(store.acquire("4")) == ["a"]


@pytest.mark.parametrize("scope", ["s", "d"])
@pytest.mark.parametrize("fair", [False, True])
def test_a_held_message_owns_its_unique_key(store: Bench, scope: str, fair: bool) -> None:
    store.define_limit(concurrency=1, fair=fair)
    send(store, "a")
    assert ids(store.acquire("1")) == ["a"]
    store.put(labelled("b", 0, lane="api:", unique=f"{scope}k"))
    assert ids(store.acquire("2")) == []

    assert store.states(labelled("c", 0, lane="api:", unique=f"{scope}k", policy="k 0 0")) == [
        "kept"
    ]
    assert store.states(labelled("d", 0, lane="api:", unique=f"{scope}k")) == ["replaced"]
    store.ack("1:1")
    assert ids(store.acquire("3")) == ["d"]
    store.ack("3:1")
    assert store.client.exists("{q}:unique", "{q}:held", "{q}:lanes", "{q}:entries") == 0


def test_what_people_run_now_is_the_next_of_its_lane(store: Bench) -> None:
    store.define_limit(concurrency=1)
    send(store, "a")
    store.acquire("1")
    for due_ms, id in enumerate(("b", "c", "d", "e"), 1):
        store.put(labelled(id, FAR, lane="api:"))
        if id != "e":
            store.become_due(id, 10 * due_ms)
    store.promote()
    assert ids(store.acquire("2")) == []

    assert store.run_now("e", "d") == ["d", "d"]
    assert ids(store.acquire("3")) == []
    store.ack("1:1")
    for number, expected in enumerate("debc", 4):
        assert ids(store.acquire(str(number))) == [expected]
        store.ack(f"{number}:1")
