"""A sign that lanes may go, or a planned look at their queue, is lost: the next look of the fleet
at all queues restores it, in each state in which a lane may go.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any

import pytest

from celery_delayq.store.keys import Keys
from celery_delayq.testing import wait_until
from celery_delayq.transport.fair_share import FairShare
from tests.lua.bench import DEFAULT, FAR, QUEUE, Bench, labelled
from tests.lua.leases.test_limits import ids, send
from tests.support.leases import ack, replace

LANES_WAKE = "{q}:lanes_wake"
RETRY = labelled("a", message_id="b", lane="api:")


def publish(store: Bench) -> None:
    send(store, "x")


def become_due(store: Bench) -> None:
    store.put(labelled("x", FAR, lane="api:"))
    store.become_due("x")
    store.promote()


def leave_to_another_process(store: Bench) -> None:
    """The process that asked can run one message only."""
    store.define_limit(concurrency=2, fair=True)
    send(store, "a", "x")
    assert ids(store.acquire("1", scarce=1)) == ["a"]


def leave_until_the_process_can_run_it(store: Bench) -> None:
    leave_to_another_process(store)
    store.define_limit(concurrency=1, fair=True)
    store.ack("1:1")


def change_the_limit(store: Bench) -> None:
    send(store, "a", "x")
    store.acquire("1")
    store.acquire("2")
    store.define_limit(concurrency=2, fair=True)
    store.run_steps(store.task_limits.wake_lanes_steps(QUEUE, "api"))


def wait_for_the_rate(store: Bench) -> None:
    store.define_limit(interval_us=20_000, concurrency=2, fair=True)
    send(store, "a", "x")
    assert ids(store.acquire("1")) == ["a"]
    [(_, moment)] = store.client.zrange("{q}:lanes", 0, -1, withscores=True)
    wait_until(lambda: store.now_us() > moment, what="the moment of the lane")


def lease_elsewhere(store: Bench) -> None:
    """Another queue has the only permit, and "x" waits for it."""
    send(store, "a", queue="p")
    assert ids(store.acquire("1", queue="p")) == ["a"]
    send(store, "x")
    assert ids(store.acquire("1")) == []
    assert store.client.zscore("{q}:lanes", "api:") == float("inf")


def of_another_queue(end: Callable[[Bench], Any]) -> Callable[[Bench], None]:
    """Return the state in which a message of another queue has ended and given back its permit."""

    def make(store: Bench) -> None:
        lease_elsewhere(store)
        end(store)

    return make


def reclaim(store: Bench) -> None:
    store.pass_time()
    assert store.leases.reclaim_expired("p", DEFAULT, "me", 100, 5).requeued == 1


#: The ways in which a lane may go that has the message "x".
STATES: dict[str, Callable[[Bench], None]] = {
    "published": publish,
    "due": become_due,
    "left to another process": leave_to_another_process,
    "left until the process can run it": leave_until_the_process_can_run_it,
    "its limit has changed": change_the_limit,
    "the moment of its rate has come": wait_for_the_rate,
    "another queue acknowledged": of_another_queue(lambda s: ack(s, "p", "me", ["1:1"])),
    "another queue requeued": of_another_queue(
        lambda s: s.leases.requeue("p", "me", ["1:1"], last=True)
    ),
    "another queue retried": of_another_queue(
        lambda s: replace(s, "p", RETRY, "p", "me", "1:1", when_due="push")
    ),
    "another queue has a dead letter": of_another_queue(
        lambda s: s.leases.dead_letter("p", "me", "1:1", "a", "rejected")
    ),
    "another queue reclaimed": of_another_queue(reclaim),
}

#: The ways in which a sign is lost.
LOSSES: dict[str, Callable[[Bench], object]] = {
    "it expired": lambda s: s.client.pexpire(LANES_WAKE, 0),
    "who popped it was killed": lambda s: s.client.lpop(LANES_WAKE),
    "who popped it can run none": lambda s: (
        s.client.lpop(LANES_WAKE),
        s.acquire("9", 1, who="busy", scarce=0),
        s.client.lpop(LANES_WAKE),
    ),
    "it was deleted with its queue's wake list": lambda s: s.client.delete(LANES_WAKE, "{q}:wake"),
}


def look(store: Bench) -> None:
    """Look at all queues, as the fleet does."""
    store.wake_ready(store.ready_of([("p", DEFAULT), (QUEUE, DEFAULT)]))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("state", STATES)
def test_the_next_look_restores_a_lost_sign(store: Bench, state: str, loss: str) -> None:
    store.define_limit(concurrency=1, fair=True)
    STATES[state](store)
    LOSSES[loss](store)
    store.client.zrem(Keys().next_due, QUEUE, "p")
    assert not store.client.exists(LANES_WAKE)

    look(store)

    assert store.client.exists(LANES_WAKE)
    # A consumer that has not heard of limits waits for this list only.
    assert store.client.exists("{q}:wake")
    assert ids(store.acquire("10")) == ["x"]


def test_an_ack_wakes_a_lane_that_was_not_tried(store: Bench) -> None:
    """The sign that the lease had left has expired while the task ran."""
    store.define_limit(concurrency=1, fair=True)
    send(store, "a", "b")
    assert ids(store.acquire("1", 1, scarce=1)) == ["a"]
    store.client.delete(LANES_WAKE)

    store.ack("1:1")

    assert store.client.exists(LANES_WAKE)


@pytest.mark.parametrize("queue_is_paused", [True, False])
def test_what_may_not_go_wakes_nobody(store: Bench, queue_is_paused: bool) -> None:
    store.define_limit(concurrency=1, fair=True)
    send(store, "a")
    if not queue_is_paused:
        store.acquire("1")
        send(store, "b")
        assert ids(store.acquire("2")) == []
    else:
        store.pause(queue=QUEUE)
    store.client.delete(LANES_WAKE, "{q}:wake")

    look(store)

    assert not store.client.exists(LANES_WAKE, "{q}:wake")


@pytest.mark.parametrize("key", ["{q}:lanes", "delayq:freed_lanes"])
def test_a_key_of_another_type_keeps_no_ready_message_from_consumers(
    store: Bench, key: str
) -> None:
    store.push(b"ready")
    store.client.delete("{q}:wake", key)
    store.client.set(key, "of somebody else")

    look(store)

    assert store.client.exists("{q}:wake")


# -- whom a process asks next


@pytest.mark.parametrize(("priority", "place"), [(0, 1), (3, 2), (6, 3), (9, 4)])
def test_a_reply_tells_the_priority_of_the_next_lane(
    store: Bench, priority: int, place: int
) -> None:
    store.define_limit(fair=True)
    send(store, "a", "b", priority=priority)

    assert store.acquire("1", 1).first_list == place
    assert store.acquire("2", 1).first_list == 0


def test_a_more_urgent_lane_counts_before_ready_messages(store: Bench) -> None:
    store.define_limit(fair=True)
    send(store, *"abc", priority=3)
    store.push(b"1", b"2", step=9)

    assert store.acquire("1", 1).first_list == 2


def test_a_process_learns_that_it_gets_no_more_of_lanes_than_it_can_run(store: Bench) -> None:
    store.define_limit(concurrency=3, fair=True)
    send(store, "a", "b", "c")

    found = store.acquire("1", scarce=1)
    assert (ids(found), found.first_list, found.lanes_wait) == (["a"], 1, True)
    found = store.acquire("2", 1, scarce=2)
    assert (ids(found), found.first_list, found.lanes_wait) == (["b"], 1, True)
    found = store.acquire("3", 1, scarce=1)
    assert (ids(found), found.first_list, found.lanes_wait) == (["c"], 0, False)


@pytest.mark.parametrize("concurrency", [0, 40])
def test_a_busy_process_goes_on_with_lanes_whose_permits_are_not_scarce(
    store: Bench, concurrency: int
) -> None:
    store.define_limit(concurrency=concurrency, fair=True)
    send(store, *"abc")

    for number, id in enumerate("abc"):
        found = store.acquire(str(number + 1), 1, scarce=0)
        assert (ids(found), found.first_list, found.lanes_wait) == ([id], int(id != "c"), False)


@pytest.mark.parametrize("period", range(1, 9))
def test_requests_in_a_pattern_leave_turns_to_lanes_and_to_ready_messages(
    store: Bench, period: int
) -> None:
    store.define_limit(fair=True)
    send(store, *(f"x{n}" for n in range(40)))
    store.put(*(labelled(f"free{n}", 0) for n in range(40)))

    found = [id for n in range(40) for id in ids(store.acquire(str(1 + n * period), 1))]
    assert 14 <= len([id for id in found if id.startswith("x")]) <= 26


def test_lanes_have_their_turn_beside_a_queue_that_is_never_empty(store: Bench) -> None:
    store.define_limit(fair=True)
    for n in range(5):
        send(store, f"x{n}", queue="reports")
    share, done = FairShare(), list[str]()
    number = 0
    while len(done) < 5:
        store.push(*(b"live" for _ in range(5)), queue="live")
        for each in share.deal(["live", "reports"], 4, 4, fair=True):
            number += 1
            found = store.acquire(str(number), each.limit, lists=each.lists, queue=each.queue)
            share.note_first_list(each.queue, found.first_list)
            done += ids(found) if each.queue == "reports" else []
        assert number < 40, "the lanes have no turn"


# -- how much of a limit is used


@pytest.mark.parametrize("fair", [True, False])
@pytest.mark.parametrize("concurrency", [1, 4, 7])
def test_as_many_run_as_the_limit_allows_while_a_lane_has_work(
    store: Bench, concurrency: int, fair: bool
) -> None:
    """Three processes, of three messages each, ask only when a sign or a reply tells them to."""
    store.define_limit(concurrency=concurrency, fair=fair)
    random = Random(concurrency)
    number, slots = 60, 3
    running: dict[str, list[str]] = {"w0": [], "w1": [], "w2": []}
    has_more = dict.fromkeys(running, False)
    send(store, *(f"x{n}" for n in range(number)))
    requests = count(1)
    done = 0

    def ask() -> None:
        """Let processes ask until none has a reason to."""
        while who := next((name for name in order if may_ask(name)), None):
            free = slots - len(running[who])
            found = store.acquire(str(next(requests)), free, who=who, scarce=free)
            has_more[who] = found.first_list > 0
            running[who] += [field for field, _, _ in found.messages]

    def may_ask(name: str) -> bool:
        if len(running[name]) == slots:
            return False
        return has_more[name] or bool(store.client.delete(LANES_WAKE, "{q}:wake"))

    while done < number:
        order = random.sample(sorted(running), len(running))
        ask()
        leased = sum(map(len, running.values()))
        assert leased == min(concurrency, number - done)
        who = random.choice([name for name, fields in running.items() if fields])
        field = running[who].pop(random.randrange(len(running[who])))
        assert ack(store, QUEUE, who, [field]) == 1
        done += 1


@pytest.mark.parametrize("waiting", [1_000, pytest.param(100_000, marks=pytest.mark.full)])
def test_ten_of_a_lane_come_soon_beside_very_many_of_another(store: Bench, waiting: int) -> None:
    store.define_limit(fair=True)
    for first in range(0, waiting, 1000):
        store.put(*(labelled(f"big{n}", 0, lane="api:big") for n in range(first, first + 1000)))
    store.acquire("1", 10)
    send(store, *(f"small{n}" for n in range(10)), lane="api:small")

    found = list[str]()
    for number in range(2, 13):
        found += ids(store.acquire(str(number), 2))

    assert len(found) == 22
    assert len([id for id in found if id.startswith("small")]) == 10
