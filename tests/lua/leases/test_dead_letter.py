"""dead_letter.lua: what a process holds becomes a dead letter, byte for byte."""

from __future__ import annotations

import pytest
from redis.exceptions import ResponseError

from celery_delayq.store.keys import Layout
from celery_delayq.store.schedule import Store
from tests.lua.conftest import QUEUE, any_bytes, counts, entry, fill, hold, reserve, state
from tests.support.keyspace import snapshot

pytestmark = pytest.mark.usefixtures("watched")


def test_a_message_moves_to_the_dead_letters_with_the_reason(store: Store) -> None:
    hold(store, b"a", b"b", step=3)
    store.client.hset("{q}:deliveries", mapping=counts(b"a", b"1 0 1") | counts(b"b", b"2 0 0"))

    assert store.leases.dead_letter(QUEUE, "me", "1:1", "task-id", "unknown task\n  tasks.x")

    found = state(store)
    [(dead_letter, died)] = found.pop("{q}:dead_at").items()
    assert abs(died - store.now_ms()) < 5000
    assert found == {
        "delayq:queues": {b"q": Layout().text.encode()},
        "delayq:lease_ends": {b"q": 10},
        "{q}:dead": {b"task-id": b"1 %d 0 unknown task tasks.x\na" % died},
        "{q}:deliveries": counts(b"b", b"2 0 0"),
        "{q}:leased:me": {b"1:2": b"3\nb"},
        "{q}:leases": {b"me": 10},
    }
    assert dead_letter == b"task-id"


@any_bytes
def test_a_dead_letter_is_kept_byte_for_byte(store: Store, message: bytes) -> None:
    hold(store, message)

    assert store.leases.dead_letter(QUEUE, "me", "1:1", "id", "rejected")

    [dead_letter] = store.dead_letters.all(QUEUE)
    assert (dead_letter.id, dead_letter.reason, dead_letter.message) == ("id", "rejected", message)


def test_a_quarantined_is_kept_without_its_mark(store: Store) -> None:
    store.client.lpush("{q}:quarantined", b"3\n!deadly")
    assert reserve(store).alone

    assert store.leases.dead_letter(QUEUE, "me", "1:1", "id", "rejected")

    assert [dead_letter.message for dead_letter in store.dead_letters.all(QUEUE)] == [b"!deadly"]


def test_rejecting_again_keeps_one_dead_letter(store: Store) -> None:
    hold(store, b"a")
    store.leases.dead_letter(QUEUE, "me", "1:1", "id", "rejected")
    before = state(store)

    assert not store.leases.dead_letter(QUEUE, "me", "1:1", "id", "rejected")
    assert state(store) == before


def test_two_dead_letters_with_one_id_are_both_kept(store: Store) -> None:
    hold(store, b"a", b"b")

    assert store.leases.dead_letter(QUEUE, "me", "1:1", "id", "rejected")
    assert store.leases.dead_letter(QUEUE, "me", "1:2", "id", "rejected")

    assert sorted(dead_letter.message for dead_letter in store.dead_letters.all(QUEUE)) == [
        b"a",
        b"b",
    ]
    assert set(store.client.hkeys("{q}:dead")) == set(store.client.zrange("{q}:dead_at", 0, -1))


def test_what_others_hold_or_nobody_does_is_not_touched(store: Store) -> None:
    hold(store, b"a", who="other")
    before = state(store)

    assert not store.leases.dead_letter(QUEUE, "me", "1:1", "id", "rejected")
    assert state(store) == before


def test_what_was_retried_already_is_no_dead_letter(store: Store) -> None:
    [field] = hold(store, b"a")
    store.leases.replace(QUEUE, entry("r", 4_000_000_000_000), QUEUE, "me", field, when_due="push")

    assert not store.leases.dead_letter(QUEUE, "me", field, "id", "rejected")

    assert not store.client.exists("{q}:dead", "{q}:leased:me")
    assert store.scheduled(QUEUE) == 1


def test_a_layout_that_is_known_stays(store: Store) -> None:
    hold(store, b"a")
    store.client.hset("delayq:queues", "q", "its own")

    store.leases.dead_letter(QUEUE, "me", "1:1", "id", "rejected")

    assert store.registry() == {"q": b"its own"}


def test_what_is_held_and_unreadable_is_a_dead_letter_too(store: Store) -> None:
    store.client.hset("{q}:leased:me", "1:1", b"\xff not what we write")

    store.leases.dead_letter(QUEUE, "me", "1:1", "id", "rejected")

    assert not store.client.exists("{q}:leased:me")
    assert [dead_letter.message for dead_letter in store.dead_letters.all(QUEUE)] == [
        b"\xff not what we write"
    ]


@pytest.mark.parametrize(
    "key", ["delayq:queues", "{q}:leased:me", "{q}:deliveries", "{q}:dead", "{q}:dead_at"]
)
def test_a_key_of_another_type_leaves_the_message_held(store: Store, key: str) -> None:
    hold(store, b"a")
    store.client.set(key, "not ours")
    before = snapshot(store.client)

    with pytest.raises(ResponseError, match="WRONGTYPE"):
        store.leases.dead_letter(QUEUE, "me", "1:1", "id", "rejected")

    assert snapshot(store.client) == before


def test_a_full_server_lets_a_message_be_rejected(store: Store) -> None:
    hold(store, b"a")
    fill(store)

    assert store.leases.dead_letter(QUEUE, "me", "1:1", "id", "rejected")
    assert [dead_letter.message for dead_letter in store.dead_letters.all(QUEUE)] == [b"a"]
