"""dispatch/rate_limit.lua: the limits of entries a second and of ready messages."""

from __future__ import annotations

import pytest

from celery_delayq.settings import Limits
from celery_delayq.store.keys import Layout
from celery_delayq.store.scripting.replies import Promoted
from tests.lua.bench import FAR, QUEUE, Bench, bodies, entry, labelled, message_of

PACE = "{q}:pace"


def overdue(store: Bench, number: int, first: int = 0, *, task: str = "tasks.t") -> None:
    """Store due entries, in the order of their dues."""
    store.put(*(labelled(f"e{n:03}", task=task) for n in range(first, first + number)))
    for n in range(first, first + number):
        store.become_due(f"e{n:03}", n + 1)


def promote(store: Bench, *, rate: float = 0, max_ready: int = 0, limit: int = 100) -> Promoted:
    return store.promote(QUEUE, Layout(limits=Limits(rate, max_ready)), limit)


def last_us(store: Bench) -> float:
    """Return the time of the last promotion by Redis' clock."""
    return float(store.client.hget(PACE, "at") or 0)


def pass_time(store: Bench, seconds: float) -> None:
    """Move the last promotion into the past."""
    store.client.hset(PACE, "at", f"{last_us(store) - seconds * 1e6:.0f}")


def ready(store: Bench) -> list[bytes]:
    """Return the ready messages, the next to run first."""
    messages: list[bytes] = store.client.lrange("q", 0, -1)
    return messages[::-1]


def expected(number: int, first: int = 0) -> list[bytes]:
    return [message_of(labelled(f"e{n:03}")) for n in range(first, first + number)]


# -- most entries a second


def test_without_limits_nothing_is_kept(store: Bench) -> None:
    overdue(store, 5)

    assert promote(store).moved == 5
    assert PACE not in store.state()


def test_at_first_a_tenth_of_a_second_is_allowed(store: Bench) -> None:
    overdue(store, 100)

    assert promote(store, rate=100).moved == 10
    assert ready(store) == expected(10)


def test_later_as_many_as_the_time_allows_in_order_of_due(store: Bench) -> None:
    overdue(store, 100)
    promote(store, rate=100)
    total = 10

    for seconds, allowed in ((0.02, 2), (0.05, 5), (0.1, 10)):
        began = last_us(store)
        pass_time(store, seconds)
        moved = promote(store, rate=100).moved
        taken = (last_us(store) - began) / 1e6  # the test takes time, too
        assert allowed <= moved <= allowed + 1 + 100 * taken
        total += moved
        assert ready(store) == expected(total)


def test_what_was_not_used_is_lost_so_that_no_flood_follows(store: Bench) -> None:
    overdue(store, 100)
    promote(store, rate=100)
    pass_time(store, 3600)

    assert promote(store, rate=100).moved == 10


def test_a_clock_that_was_set_back_makes_nobody_wait_longer_than_once(store: Bench) -> None:
    overdue(store, 100)
    promote(store, rate=100)
    pass_time(store, -3600)

    look = promote(store, rate=100).look
    assert look.wait is not None
    assert look.wait < 0.1
    pass_time(store, 0.1)
    assert promote(store, rate=100).moved == 10


@pytest.mark.parametrize(("rate", "wait"), [(100.0, 0.02), (1000.0, 0.02), (1.0, 1.1), (0.1, 11)])
def test_dispatchers_look_again_when_the_next_are_allowed(
    store: Bench, rate: float, wait: float
) -> None:
    overdue(store, 400)
    promote(store, rate=rate)

    # Even if this call is late: a burst is a tenth of a second at most.
    look = promote(store, rate=rate, limit=200).look
    assert look.queue == "q"
    assert look.wait is not None
    assert 0 < look.wait <= wait
    pass_time(store, look.wait)
    assert promote(store, rate=rate).moved > 0


@pytest.mark.parametrize("rate", [0.5, 3.0, 7.5, 100.0, 12345.6])
def test_over_time_it_is_the_rate(store: Bench, rate: float) -> None:
    overdue(store, 500)
    promote(store, rate=rate)
    moved = 0
    seconds = min(20.0, 400 / rate)
    began = store.now_ms()

    passed = 0.0
    while passed < seconds:
        wait = promote(store, rate=rate, limit=1000).look.wait or 0.01
        pass_time(store, wait)
        passed += wait
        moved = 500 - (store.scheduled(QUEUE) or 0)

    passed += (store.now_ms() - began) / 1000
    assert moved <= rate * passed + max(1, rate / 10) + 1
    assert moved >= min(500, rate * seconds * 0.8 - 1)


def test_what_is_not_due_uses_nothing_up(store: Bench) -> None:
    store.put(labelled("later"))
    for _ in range(5):
        promote(store, rate=10)
    assert store.next_queue().due == FAR
    overdue(store, 3)

    assert promote(store, rate=10).moved == 1


def test_paused_and_unreadable_ones_do_not_make_others_wait(store: Bench) -> None:
    overdue(store, 50, task="paused")
    store.client.zadd("{q}:due", {f"bad{n}": 51 for n in range(50)})
    overdue(store, 1, first=100)
    store.pause(task="paused")

    looks = 0
    while not ready(store):
        promoted = promote(store, rate=50)
        looks += 1
        if not promoted.moved:
            assert promoted.look.wait == 0

    assert looks <= 21  # five at a time, without a wait
    assert ready(store) == expected(1, 100)


# -- most ready messages


def test_no_more_are_ready_than_allowed(store: Bench) -> None:
    store.push(b"{}", b"{}", step=3)
    overdue(store, 20)

    assert promote(store, max_ready=10).moved == 8
    assert promote(store, max_ready=10).moved == 0
    assert ready(store) == expected(8)


def test_more_than_allowed_is_no_error(store: Bench) -> None:
    store.push(*[b"{}"] * 30)
    overdue(store, 3)

    assert promote(store, max_ready=10).moved == 0


def test_while_it_is_full_dispatchers_look_each_second(store: Bench) -> None:
    overdue(store, 20)
    promote(store, max_ready=10)

    look = promote(store, max_ready=10).look
    assert (look.queue, round(look.wait or 0)) == ("q", 1)
    assert store.state()[PACE] == {b"below": b"5"}


def test_other_queues_do_not_wait_for_it(store: Bench) -> None:
    overdue(store, 20)
    store.schedule("other", entry("x", store.now_ms() + 500))

    assert promote(store, max_ready=10).look.queue == "other"


def test_once_half_of_it_is_gone_dispatchers_are_woken(store: Bench) -> None:
    overdue(store, 20)
    promote(store, max_ready=10)
    with store.wakeups() as heard:
        store.acquire("1", 5)
        assert store.next_queue().wait != 0
        store.acquire("2", 1)

    assert [queue for _, queue in heard] == ["q"]
    assert store.next_queue()[1:4] == ("q", store.next_queue().due, ())
    assert store.next_queue().wait == 0
    assert "below" not in store.state().get(PACE, {})
    assert promote(store, max_ready=10).moved == 6
    assert ready(store) == expected(10, 6)


def test_one_at_a_time(store: Bench) -> None:
    overdue(store, 4)

    got = []
    for n in range(4):
        assert promote(store, max_ready=1).moved == 1
        promote(store, max_ready=1)
        got += bodies(store.acquire(str(n + 1)))
        assert store.next_queue().queue is None or store.next_queue().wait == 0
    assert got == expected(4)


def test_where_there_is_room_again_nobody_is_woken(store: Bench) -> None:
    overdue(store, 20)
    promote(store, max_ready=10)
    store.client.ltrim("q", 0, 0)  # stock workers took them
    promote(store, max_ready=30, limit=10)

    assert PACE not in store.state()


def test_cancelled_ones_make_room(store: Bench) -> None:
    overdue(store, 20)
    promote(store, max_ready=10)
    store.cancel(*(f"e{n:03}" for n in range(10)))

    assert store.acquire().messages == []
    assert store.next_queue().wait == 0
    assert promote(store, max_ready=10).moved == 10


def test_both_limits_together(store: Bench) -> None:
    overdue(store, 50)

    assert promote(store, rate=50, max_ready=3).moved == 3
    pass_time(store, 1)
    assert promote(store, rate=50, max_ready=100).moved == 5
    look = promote(store, rate=50, max_ready=5).look
    assert round(look.wait or 0) == 1


def test_it_goes_on_when_the_server_is_full(store: Bench) -> None:
    overdue(store, 20)
    store.fill()

    assert promote(store, rate=100, max_ready=5).moved == 5
    store.acquire()
    assert promote(store, rate=100, max_ready=5).moved == 5


def test_a_queue_that_was_cleared_begins_again(store: Bench) -> None:
    overdue(store, 20)
    promote(store, rate=100)
    store.client.delete("q")
    store.purge(QUEUE)

    assert PACE not in store.state()
    overdue(store, 20)
    assert promote(store, rate=100).moved == 10
