"""ack.lua: what is done is forgotten, and with it how often it was delivered."""

from __future__ import annotations

import pytest

from celery_delayq.store.schedule import Store
from tests.lua.conftest import QUEUE, any_bytes, counts, entry, fill, hold, reserve, state

pytestmark = pytest.mark.usefixtures("watched")

FAR = 4_000_000_000_000


def test_what_is_done_is_forgotten_and_the_rest_stays_held(store: Store) -> None:
    hold(store, b"a", b"b", b"c")

    assert store.leases.ack(QUEUE, "me", ["1:1", "1:3"]) == 2

    assert state(store) == {
        "delayq:lease_ends": {b"q": 10},
        "{q}:leased:me": {b"1:2": b"0\nb"},
        "{q}:leases": {b"me": 10},
    }


def test_a_process_that_is_done_with_all_holds_only_a_lease_that_will_end(store: Store) -> None:
    fields = hold(store, b"a", b"b")

    assert store.leases.ack(QUEUE, "me", fields) == 2

    assert state(store) == {"delayq:lease_ends": {b"q": 10}, "{q}:leases": {b"me": 10}}


def test_acknowledging_again_finds_nothing_and_changes_nothing(store: Store) -> None:
    hold(store, b"a", b"b")
    store.leases.ack(QUEUE, "me", ["1:1"])
    before = state(store)

    assert store.leases.ack(QUEUE, "me", ["1:1"]) == 0
    assert state(store) == before


def test_what_others_hold_or_nobody_does_is_not_touched(store: Store) -> None:
    hold(store, b"a", who="other")
    before = state(store)

    assert store.leases.ack(QUEUE, "me", ["1:1", "1:2", "no:field"]) == 0
    assert state(store) == before


def test_known_and_unknown_fields_in_one_call(store: Store) -> None:
    hold(store, b"a", b"b")

    assert store.leases.ack(QUEUE, "me", ["9:9", "1:2", "1:7"]) == 1
    assert store.client.hgetall("{q}:leased:me") == {b"1:1": b"0\na"}


@any_bytes
def test_how_often_it_was_delivered_is_forgotten_with_it(store: Store, message: bytes) -> None:
    hold(store, b"other", message)
    store.client.hset("{q}:deliveries", mapping=counts(message, b"1 0 2"))
    store.client.hset("{q}:deliveries", mapping=counts(b"other", b"3 0 0"))

    assert store.leases.ack(QUEUE, "me", ["1:2"]) == 1

    assert state(store)["{q}:deliveries"] == counts(b"other", b"3 0 0")
    assert state(store)["{q}:leased:me"] == {b"1:1": b"0\nother"}


def test_a_message_that_was_delivered_alone_is_forgotten_with_its_counts(store: Store) -> None:
    store.client.lpush("{q}:quarantined", b"3\ndeadly")
    store.client.hset("{q}:deliveries", mapping=counts(b"deadly", b"5 0 0"))
    assert reserve(store).alone

    assert store.leases.ack(QUEUE, "me", ["1:1"]) == 1

    assert state(store) == {"delayq:lease_ends": {b"q": 10}, "{q}:leases": {b"me": 10}}


def test_counts_are_not_touched_by_foreign_fields(store: Store) -> None:
    hold(store, b"a", who="other")
    store.client.hset("{q}:deliveries", mapping=counts(b"a", b"1 0 0"))

    store.leases.ack(QUEUE, "me", ["1:1"])

    assert state(store)["{q}:deliveries"] == counts(b"a", b"1 0 0")


def test_a_retried_message_counts_as_held_until_it_is_acknowledged(store: Store) -> None:
    [field] = hold(store, b"a")
    store.client.hset("{q}:deliveries", mapping=counts(b"other", b"3 0 0"))
    store.leases.replace(QUEUE, entry("r", FAR), QUEUE, "me", field, when_due="push")

    assert store.leases.ack(QUEUE, "me", [field]) == 1
    assert store.leases.ack(QUEUE, "me", [field]) == 0
    assert state(store)["{q}:deliveries"] == counts(b"other", b"3 0 0")
    assert not store.client.exists("{q}:leased:me")


def test_many_acknowledgements_at_once(store: Store) -> None:
    fields = hold(store, *(b"%d" % n for n in range(500)))
    store.client.hset("{q}:deliveries", mapping=counts(b"499", b"1 0 0"))

    assert store.leases.ack(QUEUE, "me", fields) == 500
    assert state(store) == {"delayq:lease_ends": {b"q": 10}, "{q}:leases": {b"me": 10}}


def test_a_full_server_lets_messages_be_done(store: Store) -> None:
    fields = hold(store, b"a", b"b")
    store.client.hset("{q}:deliveries", mapping=counts(b"a", b"1 0 0"))
    fill(store)

    assert store.leases.ack(QUEUE, "me", fields) == 2
    assert state(store) == {"delayq:lease_ends": {b"q": 10}, "{q}:leases": {b"me": 10}}
