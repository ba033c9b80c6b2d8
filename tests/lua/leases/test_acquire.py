"""acquire.lua: from the ready lists to the lease of a process, in one step."""

from __future__ import annotations

from contextlib import suppress

import pytest
from redis.exceptions import ResponseError

from celery_delayq.store.keys import Keys, Layout
from celery_delayq.store.leases import Deliveries, Reserved
from celery_delayq.store.schedule import Store
from tests.lua.conftest import (
    LEASE,
    QUEUE,
    any_bytes,
    bodies,
    counts,
    entry,
    fill,
    hold,
    push,
    reserve,
    state,
)
from tests.support.keyspace import snapshot
from tests.support.model_clock import pass_time

pytestmark = pytest.mark.usefixtures("watched")


def quarantined(store: Store, message: bytes, step: int = 0) -> None:
    """Make a message wait to be delivered alone."""
    store.client.lpush("{q}:quarantined", b"%d\n" % step + message)
    store.client.hset("{q}:deliveries", mapping=counts(message, b"5 0 0"))


def test_messages_move_from_ready_to_the_lease_the_oldest_first(store: Store) -> None:
    push(store, b"a", b"b", b"c")

    reserved = reserve(store, "7", 2)

    assert bodies(reserved) == [b"a", b"b"]
    assert (reserved.more, reserved.alone) == (1, False)
    assert state(store) == {
        "delayq:lease_ends": {b"q": 10},
        "q": [b"c"],
        "{q}:leased:me": {b"7:1": b"0\na", b"7:2": b"0\nb"},
        "{q}:leases": {b"me": 10},
        "{q}:wake": [b""],
    }


def test_more_urgent_lists_come_first_and_each_message_keeps_its_step(store: Store) -> None:
    for step in (9, 0, 6, 3):
        push(store, b"first %d" % step, b"second %d" % step, step=step)

    assert bodies(reserve(store, "1", 5)) == [
        b"first 0",
        b"second 0",
        b"first 3",
        b"second 3",
        b"first 6",
    ]
    assert store.client.hget("{q}:leased:me", "1:5") == b"6\nfirst 6"
    assert bodies(reserve(store, "2", 5)) == [b"second 6", b"first 9", b"second 9"]


def test_only_as_many_lists_as_asked_for_are_taken_from(store: Store) -> None:
    push(store, b"urgent")
    push(store, b"less", step=3)
    push(store, b"least", step=9)

    reserved = reserve(store, lists=2)

    assert bodies(reserved) == [b"urgent", b"less"]
    assert reserved.more == 4


@pytest.mark.parametrize(("step", "place"), [(0, 1), (3, 2), (6, 3), (9, 4)])
def test_the_first_list_with_something_left_is_told(store: Store, step: int, place: int) -> None:
    push(store, b"a", b"b", step=step)
    push(store, b"c", step=9)

    assert reserve(store, "1", 1).more == place


def test_an_empty_queue_gives_nothing_and_leaves_nothing(store: Store) -> None:
    assert reserve(store) == Reserved(0, False, False, [])

    assert state(store) == {}


def test_the_marker_goes_with_the_last_message(store: Store) -> None:
    push(store, b"a", b"b")

    assert reserve(store, "1", 1).more == 1
    assert store.client.lrange("{q}:wake", 0, -1) == [b""]
    assert reserve(store, "2", 1).more == 0
    assert not store.client.exists("{q}:wake")


def test_the_marker_is_put_back_while_something_is_left(store: Store) -> None:
    # A stock producer leaves no marker, and another consumer may have popped it.
    store.client.lpush("q\x06\x169", b"a", b"b")

    reserve(store, "1", 1)

    assert store.client.lrange("{q}:wake", 0, -1) == [b""]


def test_several_processes_share_a_queue_and_hold_apart(store: Store) -> None:
    push(store, b"a", b"b", b"c")

    reserve(store, "1", 2, who="one")
    pass_time(store.client, 120)
    reserve(store, "1", 2, who="two")

    assert state(store) == {
        "delayq:lease_ends": {b"q": 8},
        "{q}:leased:one": {b"1:1": b"0\na", b"1:2": b"0\nb"},
        "{q}:leased:two": {b"1:1": b"0\nc"},
        "{q}:leases": {b"one": 8, b"two": 10},
    }


def test_taking_more_extends_the_lease_on_all_that_is_held(store: Store) -> None:
    push(store, b"a", b"b")
    reserve(store, "1", 1)
    pass_time(store.client, 300)

    reserve(store, "2", 1)

    assert state(store)["{q}:leases"] == {b"me": 10}
    # A look too early finds the lease extended, and looks again.
    assert state(store)["delayq:lease_ends"] == {b"q": 5}


@any_bytes
def test_any_bytes_are_handed_out_as_they_are(store: Store, message: bytes) -> None:
    push(store, b"before", b"after", message)

    assert bodies(reserve(store)) == [b"before", b"after", message]
    assert bodies(reserve(store)) == [b"before", b"after", message]
    assert store.client.hget("{q}:leased:me", "1:3") == b"0\n" + message


def test_a_large_batch_does_not_overflow_the_stack_of_lua(store: Store) -> None:
    push(store, *(b"%d" % n for n in range(1000)))

    assert len(reserve(store, "1", 1000).messages) == 1000
    assert store.client.hlen("{q}:leased:me") == 1000


def test_a_batch_too_large_for_the_stack_of_lua_loses_nothing(store: Store) -> None:
    # `unpack` fails at 8,000 items: 4,000 fields with their values.
    for start in range(0, 9000, 1000):
        push(store, *(b"%d" % n for n in range(start, start + 1000)))

    with suppress(ResponseError):
        reserve(store, "1", 9000)

    assert store.client.llen("q") + store.client.hlen("{q}:leased:me") == 9000


# -- a reply was lost


def test_the_same_message_id_gives_the_same_messages_and_changes_nothing(store: Store) -> None:
    push(store, b"a", b"b", b"c", b"d")
    first = reserve(store, "1", 3)
    before = state(store)

    assert reserve(store, "1", 3) == first
    assert state(store) == before


def test_the_same_message_id_extends_the_lease(store: Store) -> None:
    hold(store, b"a")
    pass_time(store.client, 300)

    reserve(store, "1")

    assert state(store)["{q}:leases"] == {b"me": 10}


def test_a_repeat_that_asks_for_more_gives_the_same(store: Store) -> None:
    push(store, b"a", b"b", b"c", b"d")
    reserve(store, "1", 2)

    assert bodies(reserve(store, "1", 4)) == [b"a", b"b"]


def test_a_message_id_belongs_to_the_process_that_made_it(store: Store) -> None:
    push(store, b"a", b"b")
    reserve(store, "1", 1, who="me")

    assert bodies(reserve(store, "1", 1, who="other")) == [b"b"]


@pytest.mark.parametrize("done", ["1:1", "1:2", "1:3"])
def test_a_repeat_after_an_acknowledgement_loses_and_moves_nothing(store: Store, done: str) -> None:
    # The first request reaches Redis late, over a connection that was given up.
    push(store, b"a", b"b", b"c", b"d", b"e", b"f")
    reserve(store, "1", 3)
    store.leases.ack(QUEUE, "me", [done])
    before = state(store)

    again = reserve(store, "1", 3)

    assert state(store) == before
    held = store.client.hgetall("{q}:leased:me")
    told = {field.encode(): b"0\n" + message for field, message, _ in again.messages}
    assert told == held


def test_a_repeat_after_all_was_acknowledged_takes_nothing(store: Store) -> None:
    """Its fields were used: an ack that is sent again would hit another message."""
    push(store, b"a", b"b", b"c")
    reserve(store, "1", 2)
    store.leases.ack(QUEUE, "me", ["1:1", "1:2"])

    assert bodies(reserve(store, "1", 2)) == []
    assert bodies(reserve(store, "2", 2)) == [b"c"]
    assert store.client.hgetall("{q}:request_numbers") == {b"me": b"2"}


def test_a_request_that_was_overtaken_by_a_later_one_takes_nothing(store: Store) -> None:
    # Two channels of one process; it asks again with a new message id.
    push(store, b"a", b"b", b"c")
    reserve(store, "10", 1)
    before = state(store)

    assert reserve(store, "9", 2) == Reserved(1, False, False, [])
    assert state(store) == before
    assert bodies(reserve(store, "11", 2)) == [b"b", b"c"]


def test_a_call_that_found_nothing_may_be_repeated_with_success(store: Store) -> None:
    assert bodies(reserve(store, "1", 2)) == []
    push(store, b"a")

    assert bodies(reserve(store, "1", 2)) == [b"a"]


def test_a_repeat_after_a_part_was_taken_back_loses_nothing(store: Store) -> None:
    # Redis was not reached for longer than a lease, and leases/reclaim_expired.lua works in
    # batches.
    hold(store, b"a", b"b", b"c")
    store.client.hdel("{q}:leased:me", "1:1")
    store.client.rpush("q", b"d", b"a")

    reserve(store, "1", 3)

    found = store.client.lrange("q", 0, -1)
    found += [held[2:] for held in store.client.hvals("{q}:leased:me")]
    assert sorted(found) == [b"a", b"b", b"c", b"d"]


# -- how often it was delivered


def test_former_deliveries_are_told_also_to_a_repeat(store: Store) -> None:
    push(store, b"new", b"old")
    store.client.hset("{q}:deliveries", mapping=counts(b"old", b"1 2 3"))

    expected = [
        ("1:1", b"new", Deliveries()),
        ("1:2", b"old", Deliveries(reclaimed=1, crashed=2, requeued=3)),
    ]
    assert reserve(store).messages == expected
    assert reserve(store).messages == expected
    assert store.client.hgetall("{q}:deliveries") == counts(b"old", b"1 2 3")


# -- quarantined messages


def test_a_quarantined_goes_alone_and_before_what_is_ready(store: Store) -> None:
    push(store, b"a", b"b")
    quarantined(store, b"deadly", step=6)
    quarantined(store, b"deadly too")

    reserved = reserve(store)

    assert reserved.alone
    assert reserved.messages == [("1:1", b"deadly", Deliveries(reclaimed=5))]
    assert state(store) == {
        "delayq:lease_ends": {b"q": 10},
        "q": [b"b", b"a"],
        "{q}:deliveries": counts(b"deadly", b"5 0 0") | counts(b"deadly too", b"5 0 0"),
        "{q}:leased:me": {b"1:1": b"6!\ndeadly"},
        "{q}:leases": {b"me": 10},
        "{q}:quarantined": [b"0\ndeadly too"],
        "{q}:wake": [b""],
    }


def test_a_quarantined_is_handed_out_again_for_the_same_message_id(store: Store) -> None:
    push(store, b"a")
    quarantined(store, b"deadly")
    first = reserve(store)
    before = state(store)

    assert reserve(store) == first
    assert first.alone
    assert state(store) == before


@any_bytes
def test_a_quarantined_is_handed_out_as_it_is(store: Store, message: bytes) -> None:
    quarantined(store, message, step=3)

    assert bodies(reserve(store)) == [message]
    assert store.client.hget("{q}:leased:me", "1:1") == b"3!\n" + message


def test_who_holds_something_takes_nothing_more_until_it_is_free_for_a_quarantined(
    store: Store,
) -> None:
    [field] = hold(store, b"a")
    push(store, b"b")
    quarantined(store, b"deadly")

    waiting = reserve(store, "2")

    assert waiting == Reserved(1, False, True, [])
    assert store.client.get("{q}:quarantine_turn") == b"me"
    assert 0 < store.client.pttl("{q}:quarantine_turn") <= LEASE * 1000
    assert store.client.lrange("q", 0, -1) == [b"b"]

    store.leases.ack(QUEUE, "me", [field])
    message = ("3:1", b"deadly", Deliveries(reclaimed=5))
    assert reserve(store, "3") == Reserved(1, True, False, [message])
    assert not store.client.exists("{q}:quarantine_turn")


def test_the_marker_tells_of_a_quarantined_until_someone_makes_room_for_it(store: Store) -> None:
    [field] = hold(store, b"a")
    quarantined(store, b"deadly")
    quarantined(store, b"deadly too")

    assert reserve(store, "2") == Reserved(0, False, True, [])
    assert not store.client.exists("{q}:wake")

    store.leases.ack(QUEUE, "me", [field])
    assert reserve(store, "3").alone
    assert store.client.lrange("{q}:wake", 0, -1) == [b""]

    assert reserve(store, "1", who="other").alone
    assert not store.client.exists("{q}:wake")


def test_an_unreadable_quarantined_is_handed_out_as_it_is(store: Store) -> None:
    store.client.lpush("{q}:quarantined", b"\xff not what we write")

    reserved = reserve(store)

    assert (reserved.alone, bodies(reserved)) == (True, [b"\xff not what we write"])
    assert not store.client.exists("{q}:quarantined")
    assert bodies(reserve(store)) == [b"\xff not what we write"]


def test_messages_of_other_queues_count_as_held(store: Store) -> None:
    push(store, b"a")
    quarantined(store, b"deadly")

    assert reserve(store, others=1).messages == []
    assert reserve(store, others=0).alone


def test_the_others_go_on_while_one_makes_itself_free_for_a_quarantined(store: Store) -> None:
    hold(store, b"a", who="me")
    hold(store, b"b", who="other")
    push(store, b"c")
    quarantined(store, b"deadly")
    reserve(store, "2", who="me")

    assert bodies(reserve(store, "2", who="other")) == [b"c"]
    assert store.client.get("{q}:quarantine_turn") == b"me"


def test_who_holds_nothing_takes_a_quarantined_whose_turn_it_ever_is(store: Store) -> None:
    hold(store, b"a", who="me")
    quarantined(store, b"deadly")
    reserve(store, "2", who="me")

    assert bodies(reserve(store, "1", who="idle")) == [b"deadly"]
    assert not store.client.exists("{q}:quarantine_turn")


def test_a_retry_that_is_not_acknowledged_yet_counts_as_held(store: Store) -> None:
    [field] = hold(store, b"a")
    store.leases.replace(QUEUE, entry("r", 4_000_000_000_000), QUEUE, "me", field, when_due="push")
    quarantined(store, b"deadly")

    assert reserve(store, "2").messages == []


# -- what may be in the way


@pytest.mark.parametrize(
    "key",
    [
        "q",
        "q\x06\x163",
        "delayq:clock",
        "delayq:lease_ends",
        "{q}:deliveries",
        "{q}:leased:me",
        "{q}:leases",
        "{q}:request_numbers",
        "{q}:quarantined",
    ],
)
def test_a_key_of_another_type_leaves_everything_ready(store: Store, key: str) -> None:
    push(store, b"a")
    push(store, b"b", step=6)
    store.client.set(key, "not ours")
    before = snapshot(store.client)

    with pytest.raises(ResponseError, match="WRONGTYPE"):
        reserve(store)

    assert snapshot(store.client) == before


def test_a_turn_of_another_type_leaves_everything_ready(store: Store) -> None:
    hold(store, b"a")
    push(store, b"b")
    quarantined(store, b"deadly")
    store.client.lpush("{q}:quarantine_turn", "not ours")
    before = snapshot(store.client)

    with pytest.raises(ResponseError, match="WRONGTYPE"):
        reserve(store, "2")

    assert snapshot(store.client) == before


def test_a_full_server_lets_messages_be_leased(store: Store) -> None:
    push(store, b"a", b"b", b"c")
    store.client.delete("{q}:wake")
    fill(store)

    assert bodies(reserve(store, "1", 2)) == [b"a", b"b"]
    assert bodies(reserve(store, "1", 2)) == [b"a", b"b"]
    assert state(store)["{q}:leases"] == {b"me": 10}
    assert state(store)["{q}:wake"] == [b""]


def test_a_full_server_lets_quarantined_be_leased(store: Store) -> None:
    [field] = hold(store, b"a")
    quarantined(store, b"deadly")
    fill(store)

    assert reserve(store, "2").messages == []
    store.leases.ack(QUEUE, "me", [field])
    assert bodies(reserve(store, "3")) == [b"deadly"]


def test_every_key_carries_the_prefix(store: Store) -> None:
    prefixed = Store(store.client, Keys("app1."), Layout())
    prefixed.next_queue()
    push(prefixed, b"a", b"b", step=3)
    reserve(prefixed, "1", 1)

    assert {key for key in snapshot(store.client) if key != "delayq:clock"} == {
        "app1.delayq:clock",
        "app1.delayq:lease_ends",
        "app1.q\x06\x163",
        "app1.{q}:leased:me",
        "app1.{q}:leases",
        "app1.{q}:request_numbers",
        "app1.{q}:wake",
    }
