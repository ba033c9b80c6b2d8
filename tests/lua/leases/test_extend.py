"""extend.lua: a sign of life extends the lease on all that a process holds of a queue."""

from __future__ import annotations

import pytest
from redis.exceptions import ResponseError

from celery_delayq.store.keys import Layout
from celery_delayq.store.schedule import Store
from tests.lua.conftest import LEASE, QUEUE, entry, fill, hold, state
from tests.support.keyspace import snapshot
from tests.support.model_clock import pass_time

pytestmark = pytest.mark.usefixtures("watched")


def test_a_beat_extends_the_lease_and_tells_how_much_is_held(store: Store) -> None:
    hold(store, b"a", b"b")
    pass_time(store.client, 300)

    assert store.leases.extend(QUEUE, "me", LEASE) == 2

    assert state(store) == {
        # A look too early costs little, and looks again when the lease ends.
        "delayq:lease_ends": {b"q": 5},
        "{q}:leased:me": {b"1:1": b"0\na", b"1:2": b"0\nb"},
        "{q}:leases": {b"me": 10},
    }


def test_repeated_beats_keep_the_lease_for_ever(store: Store) -> None:
    hold(store, b"a")

    for _ in range(5):
        pass_time(store.client, LEASE - 60)
        assert store.leases.extend(QUEUE, "me", LEASE) == 1
        assert store.leases.reclaim_expired(QUEUE, Layout(), "me", 100, 5) == (False, 0, 0, 0)

    assert state(store) == {
        "delayq:lease_ends": {b"q": 10},
        "{q}:leased:me": {b"1:1": b"0\na"},
        "{q}:leases": {b"me": 10},
    }


def test_a_lease_may_be_shortened(store: Store) -> None:
    hold(store, b"a")

    store.leases.extend(QUEUE, "me", 120)

    assert state(store)["{q}:leases"] == {b"me": 2}


def test_who_holds_nothing_gets_no_lease(store: Store) -> None:
    assert store.leases.extend(QUEUE, "me", LEASE) == 0

    assert state(store) == {}


def test_who_is_done_with_all_does_not_extend_its_lease(store: Store) -> None:
    [field] = hold(store, b"a")
    store.leases.ack(QUEUE, "me", [field])
    pass_time(store.client, 300)

    assert store.leases.extend(QUEUE, "me", LEASE) == 0

    assert state(store) == {"delayq:lease_ends": {b"q": 5}, "{q}:leases": {b"me": 5}}


def test_what_others_hold_is_not_extended(store: Store) -> None:
    hold(store, b"a", who="me")
    hold(store, b"b", who="other")
    pass_time(store.client, 300)

    store.leases.extend(QUEUE, "me", LEASE)

    assert state(store)["{q}:leases"] == {b"me": 10, b"other": 5}


def test_a_beat_that_comes_before_the_reaper_saves_what_is_held(store: Store) -> None:
    hold(store, b"a")
    pass_time(store.client, LEASE + 60)

    assert store.leases.extend(QUEUE, "me", LEASE) == 1
    assert store.leases.reclaim_expired(QUEUE, Layout(), "me", 100, 5) == (False, 0, 0, 0)


def test_a_beat_that_comes_after_the_reaper_tells_that_all_is_lost(store: Store) -> None:
    hold(store, b"a")
    pass_time(store.client, LEASE + 60)
    store.leases.reclaim_expired(QUEUE, Layout(), "me", 100, 5)
    before = state(store)

    assert store.leases.extend(QUEUE, "me", LEASE) == 0
    assert state(store) == before


def test_a_retried_message_counts_as_held_until_it_is_acknowledged(store: Store) -> None:
    [field] = hold(store, b"a")
    store.leases.replace(QUEUE, entry("r", 4_000_000_000_000), QUEUE, "me", field, when_due="push")

    assert store.leases.extend(QUEUE, "me", LEASE) == 1


@pytest.mark.parametrize(
    "key", ["{q}:leased:me", "{q}:leases", "delayq:clock", "delayq:lease_ends"]
)
def test_a_key_of_another_type_is_an_error_before_anything_is_written(
    store: Store, key: str
) -> None:
    hold(store, b"a")
    store.client.set(key, "not ours")
    before = snapshot(store.client)

    with pytest.raises(ResponseError, match="WRONGTYPE"):
        store.leases.extend(QUEUE, "me", LEASE)

    assert snapshot(store.client) == before


def test_a_full_server_lets_leases_be_extended(store: Store) -> None:
    hold(store, b"a")
    store.client.delete("{q}:leases", "delayq:lease_ends")
    fill(store)

    assert store.leases.extend(QUEUE, "me", LEASE) == 1
    assert state(store)["{q}:leases"] == {b"me": 10}
    assert state(store)["delayq:lease_ends"] == {b"q": 10}
