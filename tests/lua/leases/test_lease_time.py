"""next_queue.lua: lease time passes while a dispatcher looks, and otherwise stands still."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from redis import Redis

from tests.lua.bench import FAR, LEASE, QUEUE, Bench
from tests.support.lease_time import CLOCK, go_unwatched, set_clock_back

MAX_GAP = 200.0


def look(store: Bench) -> tuple[str, ...]:
    """Look at the next-due index; return the queues with an ended lease."""
    return store.next_queue(MAX_GAP).reclaim_expired


def test_a_lease_ends_after_its_length_and_the_queue_is_reported(store: Bench) -> None:
    store.hold(b"a")
    assert look(store) == ()

    store.pass_time(LEASE - 60)
    assert look(store) == ()

    store.pass_time(120)
    assert look(store) == ("q",)
    assert look(store) == ("q",)


def test_a_queue_is_reported_until_it_was_reclaimed(store: Bench) -> None:
    store.hold(b"a")
    store.pass_time()
    assert look(store) == ("q",)

    store.reclaim_expired()

    assert look(store) == ()


def test_the_queues_whose_leases_ended_are_reported_the_first_to_end_first(store: Bench) -> None:
    for queue in ("one", "two", "three"):
        store.push(b"a", queue=queue)
        store.acquire(queue=queue)
        store.pass_time(120)

    store.pass_time(LEASE - 180)
    assert look(store) == ("one", "two")


def test_a_short_lease_beside_a_longer_one_is_looked_at_when_it_ends(store: Bench) -> None:
    store.push(b"a", b"b")
    store.leases.acquire(QUEUE, "long", 100 * LEASE, "1", 1)
    store.leases.acquire(QUEUE, "short", LEASE, "1", 1)

    store.pass_time()

    assert look(store) == ("q",)


def test_a_lease_that_is_shortened_is_looked_at_when_it_ends(store: Bench) -> None:
    store.push(b"a")
    store.leases.acquire(QUEUE, "me", 100 * LEASE, "1", 1)
    store.leases.extend(QUEUE, "me", LEASE)

    store.pass_time()

    assert look(store) == ("q",)


def test_the_next_due_is_reported_beside_it(store: Bench) -> None:
    store.client.zadd("delayq:next_due", {"later": FAR, "soon": 5})
    store.hold(b"a")
    store.pass_time()

    told = store.next_queue(MAX_GAP)

    assert (told.queue, told.due, told.reclaim_expired) == ("soon", 5, ("q",))


def test_a_time_between_two_looks_shorter_than_the_longest_gap_counts(store: Bench) -> None:
    store.hold(b"a")

    for _ in range(4):
        go_unwatched(store.client, MAX_GAP - 20)
        told = look(store)

    assert told == ("q",)
    assert store.state()["{q}:leases"] == {b"me": -2}


@pytest.mark.parametrize(
    ("jump", "gaps"),
    [(go_unwatched, (MAX_GAP + 20, LEASE, 86_400)), (set_clock_back, (1, 3600, 86_400))],
)
def test_lease_time_stands_still_while_nobody_looks_and_when_the_clock_goes_back(
    store: Bench, jump: Callable[[Redis, float], None], gaps: tuple[float, ...]
) -> None:
    store.hold(b"a")
    store.pass_time(240)

    for gap in gaps:
        jump(store.client, gap)
        assert look(store) == ()
        assert store.state()["{q}:leases"] == {b"me": 6}
        assert store.state()["delayq:lease_ends"] == {b"q": 6}

    store.pass_time(420)
    assert look(store) == ("q",)


def test_of_several_lookers_one_stops_lease_time_when_a_gap_ends(store: Bench) -> None:
    store.hold(b"a")
    go_unwatched(store.client, 86_400)

    for _ in range(5):
        look(store)

    assert store.state()["{q}:leases"] == {b"me": 10}


def test_lease_time_goes_on_after_it_stood_still(store: Bench) -> None:
    go_unwatched(store.client, 86_400)
    look(store)
    store.hold(b"a")

    assert store.state()["{q}:leases"] == {b"me": 10}
    store.pass_time()
    assert look(store) == ("q",)


def test_the_first_look_of_all_lets_nothing_end(store: Bench) -> None:
    store.client.delete(CLOCK)
    store.hold(b"a")

    assert look(store) == ()
    assert store.state()["{q}:leases"] == {b"me": 10}


@pytest.mark.parametrize("beats", [False, True], ids=["dies at once", "beats before it dies"])
def test_what_is_taken_after_a_gap_before_anyone_has_looked_is_held_no_longer(
    store: Bench, beats: bool
) -> None:
    # After a night without workers, a new one asks before its dispatcher does.
    go_unwatched(store.client, 8 * 3600)
    store.hold(b"a")
    look(store)
    if beats:
        store.leases.extend(QUEUE, "me", LEASE)

    store.pass_time()

    assert look(store) == ("q",)


def test_a_beat_after_a_gap_before_anyone_has_looked_extends_no_further(store: Bench) -> None:
    store.hold(b"a")
    go_unwatched(store.client, 8 * 3600)
    store.leases.extend(QUEUE, "me", LEASE)
    look(store)

    assert store.state()["{q}:leases"] == {b"me": 10}
