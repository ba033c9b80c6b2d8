"""Limits: which messages of lanes are leased, in what order, and when."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from celery_delayq.store.leases import AcquireReply
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.lua.bench import DEFAULT, FAR, Bench, bench, labelled, message_of

#: µs of an interval that does not pass in a test.
HOUR = 3_600_000_000


def ids(acquired: AcquireReply) -> list[str]:
    """Return the ids of leased messages, in their order."""
    return [
        message.split(b'"label": "')[1].split(b" ")[0].decode()
        for _, message, _ in acquired.messages
    ]


def send(store: Bench, *names: str, lane: str = "api:", queue: str = "q", **how: Any) -> None:
    """Publish messages of a lane that run at once."""
    for name in names:
        store.put(labelled(name, 0, lane=lane, **how), queue=queue)


def wait_for(store: Bench, numbers: Iterator[str], queue: str = "q") -> list[str]:
    """Lease messages again and again; return the ids of the first ones."""
    return wait_until(lambda: ids(store.acquire(next(numbers), queue=queue)), what="a message")


def test_a_limit_of_concurrency_leases_as_many_as_it_allows(store: Bench) -> None:
    store.define_limit(concurrency=2)
    send(store, "a", "b", "c")

    assert ids(store.acquire("1")) == ["a", "b"]
    assert ids(store.acquire("2")) == []
    store.ack("1:1")
    assert ids(store.acquire("3")) == ["c"]
    assert ids(store.acquire("4")) == []


def test_a_rate_leases_a_burst_and_then_waits(store: Bench) -> None:
    store.define_limit(interval_us=HOUR, burst=2)
    send(store, "a", "b", "c")

    assert ids(store.acquire("1")) == ["a", "b"]
    store.ack("1:1", "1:2")
    assert ids(store.acquire("2")) == []


def test_a_message_beyond_a_rate_goes_when_its_slot_comes(store: Bench) -> None:
    store.define_limit(interval_us=20_000)
    send(store, "a", "b")
    assert ids(store.acquire("1")) == ["a"]
    first = store.client.zscore("delayq:slots", "api:")

    assert wait_for(store, map(str, count(2))) == ["b"]
    assert store.client.zscore("delayq:slots", "api:") >= first + 20_000


@pytest.mark.parametrize("interval_us", [1260.08, 1260.3, 333_333.3333, 1e9 / 7])
def test_slots_add_up_exactly(interval_us: float, store: Bench) -> None:
    """A time in µs has little room for fractions: what is lost would be above the rate."""
    store.define_limit(interval_us=interval_us, burst=100)
    send(store, *map(str, range(100)))
    assert len(ids(store.acquire("1", 1))) == 1
    first = store.client.zscore("delayq:slots", "api:")

    assert len(ids(store.acquire("2", 99))) == 99
    assert store.client.zscore("delayq:slots", "api:") >= first + 99 * interval_us


def test_lanes_of_one_limit_do_not_hold_each_other(store: Bench) -> None:
    store.define_limit(concurrency=1)
    send(store, "a1", "a2", lane="api:a")
    send(store, "b1", "b2", lane="api:b")

    assert ids(store.acquire("1")) == ["a1", "b1"]


def test_lanes_with_turns_get_a_message_each_in_turn(store: Bench) -> None:
    store.define_limit(fair=True)
    send(store, *(f"big{n}" for n in range(6)), lane="api:big")
    send(store, "small1", "small2", lane="api:small")

    assert ids(store.acquire("1", 5)) == ["big0", "small1", "big1", "small2", "big2"]


@pytest.mark.full
def test_ten_that_come_behind_a_hundred_thousand_are_among_the_next_22(store: Bench) -> None:
    store.define_limit(fair=True)
    for first in range(0, 100_000, 500):
        store.put(*(labelled(f"a{n}", 0, lane="api:many") for n in range(first, first + 500)))
    assert len(ids(store.acquire("1", 5))) == 5
    few = [f"b{n}" for n in range(10)]
    send(store, *few, lane="api:few")

    found = ids(store.acquire("2", 22))

    assert (len(found), {*few} - {*found}) == (22, set())


def test_without_turns_the_earlier_due_comes_first(store: Bench) -> None:
    store.define_limit(concurrency=1)
    send(store, "a1", lane="api:a")
    send(store, "b1", lane="api:b")
    assert ids(store.acquire("1")) == ["a1", "b1"]
    send(store, "a2", lane="api:a")
    send(store, "b2", lane="api:b")
    send(store, "a3", lane="api:a")
    store.ack("1:1", "1:2")

    assert ids(store.acquire("2")) == ["a2", "b2"]


def test_tasks_without_a_limit_pass_those_that_are_held(store: Bench) -> None:
    store.define_limit(concurrency=1)
    send(store, "a", "b", "c")
    store.put(labelled("free", 0))

    assert ids(store.acquire("1")) == ["a", "free"]


@pytest.mark.parametrize("priority", [0, 3])
@pytest.mark.parametrize("sent", ["together", "one by one", "by a stock producer"])
def test_a_lane_is_in_order_of_arrival(store: Bench, sent: str, priority: int) -> None:
    """Many arrive in one ms, and the order of their ids is another one."""
    store.define_limit(concurrency=1)
    send(store, "first", priority=priority)
    assert ids(store.acquire("1")) == ["first"]
    names = [f"{n:02}" for n in range(60)][::-1]
    entries = [labelled(name, 0, lane="api:", priority=priority) for name in names]
    if sent == "together":
        store.put(*entries)
    elif sent == "one by one":
        send(store, *names, priority=priority)
    else:
        store.push(*map(message_of, entries), step=priority)
        assert ids(store.acquire("2")) == []  # all are held now
    store.define_limit()
    store.ack("1:1")

    assert ids(store.acquire("3", len(names))) == names


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("priority", [0, 3])
def test_a_lane_keeps_its_order_beside_a_backlog_of_ready_messages(
    store: Bench, fair: bool, priority: int
) -> None:
    store.define_limit(concurrency=1, fair=fair)
    send(store, "x1", "x2", priority=priority)
    store.put(*(labelled(f"free{n}", 0) for n in range(30)))
    send(store, "x3", priority=priority)
    done = list[str]()
    for number in range(1, 20):
        acquired = store.acquire(str(number), 5)
        done += ids(acquired)
        if number == 2:
            send(store, "x4", priority=priority)
        store.ack(*(field for field, _, _ in acquired.messages))

    assert [id for id in done if id[0] == "x"] == ["x1", "x2", "x3", "x4"]
    assert done.index("x2") < 30


def test_due_entries_of_a_new_lane_fill_no_ready_list(store: Bench) -> None:
    store.define_limit(concurrency=1)
    for id in "abc":
        store.put(labelled(id, FAR, lane="api:"))
        store.become_due(id)

    assert store.promote().moved == 0
    assert (store.client.exists("q"), store.client.zcard("{q}:held")) == (0, 3)
    assert ids(store.acquire("1")) == ["a"]


def test_an_immediate_message_with_a_limit_counts_as_scheduled(
    delayq_redis: RedisUnderTest,
) -> None:
    store = bench(delayq_redis, max_scheduled=2)
    store.define_limit(concurrency=1)

    limited = [labelled(id, 0, lane="api:") for id in "abc"]
    assert store.states(*limited) == ["scheduled", "scheduled", "full"]
    assert store.states(limited[0], labelled("free", 0)) == ["duplicate", "ready"]
    assert ids(store.acquire("1")) == ["a", "free"]
    assert store.states(limited[2], labelled("d", FAR)) == ["scheduled", "full"]


def test_beyond_the_first_tenth_of_the_permits_a_process_takes_as_many_as_it_can_run(
    store: Bench,
) -> None:
    store.define_limit(concurrency=20)
    send(store, *(f"a{n:02}" for n in range(30)))
    store.put(labelled("free", 0))

    first = store.acquire("1", 100, scarce=1)
    assert (ids(first), first.scarce) == (["a00", "a01", "a02", "free"], {"1:3"})
    assert ids(store.acquire("2", 100, scarce=0)) == []
    assert len(ids(store.acquire("3", 100, scarce=99))) == 17


#: Keys that stay when all tasks are done.
KEPT = {"delayq:limits", "delayq:queues", "delayq:clock", "delayq:lease_ends"}
KEPT |= {"{q}:totals", "{q}:leases", "{q}:request_numbers"}


def test_nothing_of_a_lane_is_left_when_all_is_done(store: Bench) -> None:
    store.define_limit(interval_us=1, concurrency=1, fair=True)
    send(store, "a", "b", "c")

    for number in ("1", "2", "3"):
        assert store.acquire(number).messages
        store.ack(f"{number}:1")
    store.acquire("4")
    store.promote()

    assert {key.decode() for key in store.client.scan_iter()} <= KEPT


def test_what_waits_is_scheduled_with_a_past_due(store: Bench) -> None:
    store.define_limit(concurrency=1)
    send(store, "a", "b")
    store.acquire("1")

    [found] = store.control.find("q", ["b"])
    assert (found.state, found.due_ms < FAR) == ("paused", True)
    assert store.cancel("b") == ["d"]
    assert store.client.exists("{q}:held", "{q}:lanes", "{q}:due", "{q}:entries") == 0


def test_a_lowered_and_a_removed_limit_count_at_once(store: Bench) -> None:
    store.define_limit(concurrency=3)
    send(store, *"abcdef")
    assert ids(store.acquire("1", 2)) == ["a", "b"]

    store.define_limit(concurrency=1, by="o")
    assert ids(store.acquire("2")) == []
    store.client.delete("delayq:limits")
    store.ack("1:1")
    assert ids(store.acquire("3")) == ["c", "d", "e", "f"]


@pytest.mark.parametrize("text", ["", "x", "1 1", "-5 1 0 0", "1 1 1 1 1"])
def test_a_definition_that_cannot_be_read_limits_nothing(store: Bench, text: str) -> None:
    store.client.hset("delayq:limits", "capi", text)
    send(store, "a", "b")

    assert ids(store.acquire("1")) == ["a", "b"]


def test_due_entries_join_their_lane(store: Bench) -> None:
    store.define_limit(concurrency=1)
    send(store, "a", "b")
    store.acquire("1")
    store.put(labelled("c", FAR, lane="api:"))
    store.become_due("c")

    store.promote()
    assert store.client.exists("{q}:lanes_wake") == 0
    store.ack("1:1")
    store.promote()
    assert store.client.exists("{q}:lanes_wake") == 1
    assert ids(store.acquire("2")) == ["c"]


def test_a_permit_that_comes_back_plans_a_look_at_other_queues(store: Bench) -> None:
    store.define_limit(concurrency=1)
    send(store, "a")
    send(store, "b", "c", queue="other")
    store.acquire("1")
    assert ids(store.acquire("1", queue="other")) == []

    store.ack("1:1")
    assert store.client.zscore("delayq:next_due", "other") is not None
    assert ids(store.acquire("2", queue="other")) == ["b"]


def test_messages_without_limits_cost_no_command_of_lanes(store: Bench) -> None:
    store.put(labelled("later", FAR))
    store.become_due("later")
    store.client.config_resetstat()
    store.put(labelled("now", 0))
    assert store.promote().moved == 1
    store.wake_ready(store.ready_of([("q", DEFAULT)]))
    acquired = store.acquire("1")
    assert ids(acquired) == ["now", "later"]
    store.ack("1:1", "1:2")

    commands = {each.removeprefix("cmdstat_") for each in store.client.info("commandstats")}
    assert "evalsha" in commands
    # Scripts read lanes and permits by these commands.
    assert not commands & {"zcount", "zlexcount", "zrangebylex", "zmscore", "zscan"}
