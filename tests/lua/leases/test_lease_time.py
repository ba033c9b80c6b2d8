"""next_queue.lua: lease time passes while someone looks, and stands still while nobody does."""

from __future__ import annotations

import pytest
from redis.exceptions import ResponseError

from celery_delayq.store.keys import Layout
from celery_delayq.store.schedule import Store
from tests.lua.conftest import LEASE, QUEUE, fill, hold, push, reserve, state
from tests.support.keyspace import snapshot
from tests.support.model_clock import CLOCK, go_unwatched, pass_time, set_clock_back

PATIENCE = 200.0

pytestmark = pytest.mark.usefixtures("watched")


def look(store: Store) -> tuple[str, ...]:
    """Look at the next-due index; return the queues with a lease that has ended."""
    return store.next_queue(PATIENCE).reclaim_expired


def test_a_lease_ends_after_its_length_and_the_queue_is_told(store: Store) -> None:
    hold(store, b"a")
    assert look(store) == ()

    pass_time(store.client, LEASE - 60)
    assert look(store) == ()

    pass_time(store.client, 120)
    assert look(store) == ("q",)
    assert look(store) == ("q",)


def test_a_queue_is_told_until_it_was_reclaimed(store: Store) -> None:
    hold(store, b"a")
    pass_time(store.client, LEASE + 60)
    assert look(store) == ("q",)

    store.leases.reclaim_expired(QUEUE, Layout(), "me", 100, 5)

    assert look(store) == ()


def test_the_queues_whose_leases_ended_are_told_the_first_to_end_first(store: Store) -> None:
    for queue in ("one", "two", "three"):
        push(store, b"a", queue=queue)
        reserve(store, queue=queue)
        pass_time(store.client, 120)

    pass_time(store.client, LEASE - 180)
    assert look(store) == ("one", "two")


def test_a_short_lease_beside_a_longer_one_is_looked_at_when_it_ends(store: Store) -> None:
    push(store, b"a", b"b")
    store.leases.acquire(QUEUE, "long", 100 * LEASE, "1", 1)
    store.leases.acquire(QUEUE, "short", LEASE, "1", 1)

    pass_time(store.client, LEASE + 60)

    assert look(store) == ("q",)


def test_a_lease_that_is_shortened_is_looked_at_when_it_ends(store: Store) -> None:
    push(store, b"a")
    store.leases.acquire(QUEUE, "me", 100 * LEASE, "1", 1)
    store.leases.extend(QUEUE, "me", LEASE)

    pass_time(store.client, LEASE + 60)

    assert look(store) == ("q",)


def test_the_next_due_is_told_beside_it(store: Store) -> None:
    store.client.zadd("delayq:next_due", {"later": 4_000_000_000_000, "soon": 5})
    hold(store, b"a")
    pass_time(store.client, LEASE + 60)

    told = store.next_queue(PATIENCE)

    assert (told.queue, told.due, told.reclaim_expired) == ("soon", 5, ("q",))


def test_a_time_between_two_looks_shorter_than_patience_counts(store: Store) -> None:
    hold(store, b"a")

    for _ in range(4):
        go_unwatched(store.client, PATIENCE - 20)
        told = look(store)

    assert told == ("q",)
    assert state(store)["{q}:leases"] == {b"me": -2}


def test_lease_time_stands_still_while_nobody_looks(store: Store) -> None:
    hold(store, b"a")
    pass_time(store.client, 240)

    for gap in (PATIENCE + 20, LEASE, 86_400):
        go_unwatched(store.client, gap)
        assert look(store) == ()
        assert state(store)["{q}:leases"] == {b"me": 6}
        assert state(store)["delayq:lease_ends"] == {b"q": 6}

    pass_time(store.client, 420)
    assert look(store) == ("q",)


def test_lease_time_stands_still_when_the_clock_goes_back(store: Store) -> None:
    hold(store, b"a")
    pass_time(store.client, 240)

    for jump in (1, 3600, 86_400):
        set_clock_back(store.client, jump)
        assert look(store) == ()
        assert state(store)["{q}:leases"] == {b"me": 6}

    pass_time(store.client, 420)
    assert look(store) == ("q",)


def test_of_several_that_look_after_a_gap_one_lets_lease_time_stand(store: Store) -> None:
    hold(store, b"a")
    go_unwatched(store.client, 86_400)

    for _ in range(5):
        look(store)

    assert state(store)["{q}:leases"] == {b"me": 10}


def test_lease_time_goes_on_after_it_stood_still(store: Store) -> None:
    go_unwatched(store.client, 86_400)
    look(store)
    hold(store, b"a")

    assert state(store)["{q}:leases"] == {b"me": 10}
    pass_time(store.client, LEASE + 60)
    assert look(store) == ("q",)


def test_the_first_look_of_all_lets_nothing_end(store: Store) -> None:
    store.client.delete(CLOCK)
    hold(store, b"a")

    assert look(store) == ()
    assert state(store)["{q}:leases"] == {b"me": 10}


@pytest.mark.parametrize("beats", [False, True], ids=["dies at once", "beats before it dies"])
def test_what_is_taken_after_a_gap_before_anyone_has_looked_is_held_no_longer(
    store: Store, beats: bool
) -> None:
    # A worker is started after a night without any, and asks before its dispatcher does.
    go_unwatched(store.client, 8 * 3600)
    hold(store, b"a")
    look(store)
    if beats:
        store.leases.extend(QUEUE, "me", LEASE)

    pass_time(store.client, LEASE + 60)

    assert look(store) == ("q",)


def test_a_beat_after_a_gap_before_anyone_has_looked_extends_no_further(store: Store) -> None:
    hold(store, b"a")
    go_unwatched(store.client, 8 * 3600)
    store.leases.extend(QUEUE, "me", LEASE)
    look(store)

    assert state(store)["{q}:leases"] == {b"me": 10}


@pytest.mark.parametrize("key", ["delayq:clock", "delayq:lease_ends"])
def test_a_key_of_another_type_is_an_error_before_lease_time_is_written(
    store: Store, key: str
) -> None:
    hold(store, b"a")
    go_unwatched(store.client, 86_400)
    store.client.set(key, "not ours")
    before = snapshot(store.client)

    with pytest.raises(ResponseError, match="WRONGTYPE"):
        look(store)

    assert snapshot(store.client) == before


def test_a_full_server_lets_lease_time_pass(store: Store) -> None:
    hold(store, b"a")
    pass_time(store.client, LEASE + 60)
    fill(store)

    assert look(store) == ("q",)


def test_a_full_server_lets_lease_time_stand(store: Store) -> None:
    hold(store, b"a")
    go_unwatched(store.client, 86_400)
    store.client.delete("delayq:lease_ends")
    fill(store)

    look(store)

    assert state(store)["{q}:leases"] == {b"me": 10}
