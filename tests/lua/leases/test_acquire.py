"""acquire.lua: from the ready lists to the lease of a process, in one step."""

from __future__ import annotations

from contextlib import suppress

import pytest
from redis.exceptions import ResponseError

from celery_delayq.store.leases import AcquireReply, DeliveryCounts
from tests.lua.bench import FAR, LEASE, Bench, Calls, bodies, counts, entry

#: One call of each script here, and a reply to it.
SCRIPT_CALLS: Calls = {
    "leases/acquire": (
        lambda s: s.leases.acquire("q", "me", 30.0, "1", 5),
        [0, b"0", b"0 1:1", b"", b"{}"],
    ),
}


def test_messages_move_from_ready_to_the_lease_the_oldest_first(store: Bench) -> None:
    store.push(b"a", b"b", b"c")

    acquired = store.acquire("7", 2)

    assert bodies(acquired) == [b"a", b"b"]
    assert (acquired.first_list, acquired.alone) == (1, False)
    assert store.state() == {
        "delayq:lease_ends": {b"q": 10},
        "q": [b"c"],
        "{q}:leased:me": {b"7:1": b"0\na", b"7:2": b"0\nb"},
        "{q}:leases": {b"me": 10},
        "{q}:wake": [b""],
    }


def test_more_urgent_lists_come_first_and_each_message_keeps_its_step(store: Bench) -> None:
    for step in (9, 0, 6, 3):
        store.push(b"first %d" % step, b"second %d" % step, step=step)

    assert bodies(store.acquire("1", 5)) == [
        b"first 0",
        b"second 0",
        b"first 3",
        b"second 3",
        b"first 6",
    ]
    assert store.client.hget("{q}:leased:me", "1:5") == b"6\nfirst 6"
    assert bodies(store.acquire("2", 5)) == [b"second 6", b"first 9", b"second 9"]


def test_only_as_many_lists_as_asked_for_are_taken_from(store: Bench) -> None:
    store.push(b"urgent")
    store.push(b"less", step=3)
    store.push(b"least", step=9)

    acquired = store.acquire(lists=2)

    assert bodies(acquired) == [b"urgent", b"less"]
    assert acquired.first_list == 4


@pytest.mark.parametrize(("step", "place"), [(0, 1), (3, 2), (6, 3), (9, 4)])
def test_the_first_list_with_something_left_is_reported(
    store: Bench, step: int, place: int
) -> None:
    store.push(b"a", b"b", step=step)
    store.push(b"c", step=9)

    assert store.acquire("1", 1).first_list == place


def test_an_empty_queue_gives_nothing_and_leaves_nothing(store: Bench) -> None:
    assert store.acquire() == AcquireReply(0, False, False, [])

    assert store.state() == {}


def test_the_marker_goes_with_the_last_message(store: Bench) -> None:
    store.push(b"a", b"b")

    assert store.acquire("1", 1).first_list == 1
    assert store.client.lrange("{q}:wake", 0, -1) == [b""]
    assert store.acquire("2", 1).first_list == 0
    assert not store.client.exists("{q}:wake")


def test_the_marker_is_put_back_while_something_is_left(store: Bench) -> None:
    # A stock producer leaves no marker, and another consumer may have popped it.
    store.client.lpush("q\x06\x169", b"a", b"b")

    store.acquire("1", 1)

    assert store.client.lrange("{q}:wake", 0, -1) == [b""]


def test_several_processes_share_a_queue_and_hold_apart(store: Bench) -> None:
    store.push(b"a", b"b", b"c")

    store.acquire("1", 2, who="one")
    store.pass_time(120)
    store.acquire("1", 2, who="two")

    assert store.state() == {
        "delayq:lease_ends": {b"q": 8},
        "{q}:leased:one": {b"1:1": b"0\na", b"1:2": b"0\nb"},
        "{q}:leased:two": {b"1:1": b"0\nc"},
        "{q}:leases": {b"one": 8, b"two": 10},
    }


def test_taking_more_extends_the_lease_on_all_that_is_held(store: Bench) -> None:
    store.push(b"a", b"b")
    store.acquire("1", 1)
    store.pass_time(300)

    store.acquire("2", 1)

    assert store.state()["{q}:leases"] == {b"me": 10}
    # A look that is too early finds the lease extended, and plans the next one.
    assert store.state()["delayq:lease_ends"] == {b"q": 5}


def test_a_large_batch_does_not_overflow_the_stack_of_lua(store: Bench) -> None:
    store.push(*(b"%d" % n for n in range(1000)))

    assert len(store.acquire("1", 1000).messages) == 1000
    assert store.client.hlen("{q}:leased:me") == 1000


def test_a_batch_too_large_for_the_stack_of_lua_loses_nothing(store: Bench) -> None:
    # `unpack` fails at 8,000 items: 4,000 fields with their values.
    for start in range(0, 9000, 1000):
        store.push(*(b"%d" % n for n in range(start, start + 1000)))

    with suppress(ResponseError):
        store.acquire("1", 9000)

    assert store.client.llen("q") + store.client.hlen("{q}:leased:me") == 9000


# -- a reply was lost


def test_the_same_message_id_gives_the_same_messages_and_changes_nothing(store: Bench) -> None:
    store.push(b"a", b"b", b"c", b"d")
    first = store.acquire("1", 3)
    before = store.state()

    assert store.acquire("1", 3) == first
    assert store.state() == before


def test_the_same_message_id_extends_the_lease(store: Bench) -> None:
    store.hold(b"a")
    store.pass_time(300)

    store.acquire("1")

    assert store.state()["{q}:leases"] == {b"me": 10}


def test_a_repeat_that_asks_for_more_gives_the_same(store: Bench) -> None:
    store.push(b"a", b"b", b"c", b"d")
    store.acquire("1", 2)

    assert bodies(store.acquire("1", 4)) == [b"a", b"b"]


def test_a_message_id_belongs_to_the_process_that_made_it(store: Bench) -> None:
    store.push(b"a", b"b")
    store.acquire("1", 1, who="me")

    assert bodies(store.acquire("1", 1, who="other")) == [b"b"]


@pytest.mark.parametrize("done", ["1:1", "1:2", "1:3"])
def test_a_repeat_after_an_acknowledgement_loses_and_moves_nothing(store: Bench, done: str) -> None:
    # The first request reaches Redis late, over a closed connection.
    store.push(b"a", b"b", b"c", b"d", b"e", b"f")
    store.acquire("1", 3)
    store.ack(done)
    before = store.state()

    again = store.acquire("1", 3)

    assert store.state() == before
    held = store.client.hgetall("{q}:leased:me")
    told = {field.encode(): b"0\n" + message for field, message, _ in again.messages}
    assert told == held


def test_a_repeat_after_all_was_acknowledged_takes_nothing(store: Bench) -> None:
    """Its fields were used: a repeated ack would hit another message."""
    store.push(b"a", b"b", b"c")
    store.acquire("1", 2)
    store.ack("1:1", "1:2")

    assert bodies(store.acquire("1", 2)) == []
    assert bodies(store.acquire("2", 2)) == [b"c"]
    assert store.client.hgetall("{q}:request_numbers") == {b"me": b"2"}


def test_a_request_that_was_overtaken_by_a_later_one_takes_nothing(store: Bench) -> None:
    # Two channels of one process; it repeats the request with a new number.
    store.push(b"a", b"b", b"c")
    store.acquire("10", 1)
    before = store.state()

    assert store.acquire("9", 2) == AcquireReply(1, False, False, [])
    assert store.state() == before
    assert bodies(store.acquire("11", 2)) == [b"b", b"c"]


def test_a_call_that_found_nothing_may_be_repeated_with_success(store: Bench) -> None:
    assert bodies(store.acquire("1", 2)) == []
    store.push(b"a")

    assert bodies(store.acquire("1", 2)) == [b"a"]


def test_a_repeat_after_a_part_was_taken_back_loses_nothing(store: Bench) -> None:
    # Redis was away for longer than a lease, and leases/reclaim_expired.lua works in batches.
    store.hold(b"a", b"b", b"c")
    store.client.hdel("{q}:leased:me", "1:1")
    store.client.rpush("q", b"d", b"a")

    store.acquire("1", 3)

    found = store.client.lrange("q", 0, -1)
    found += [held[2:] for held in store.client.hvals("{q}:leased:me")]
    assert sorted(found) == [b"a", b"b", b"c", b"d"]


# -- counts of deliveries


def test_former_deliveries_are_reported_also_to_a_repeat(store: Bench) -> None:
    store.push(b"new", b"old")
    store.delivered(b"old", b"1 2 3")

    expected = [
        ("1:1", b"new", DeliveryCounts()),
        ("1:2", b"old", DeliveryCounts(reclaimed=1, crashed=2, requeued=3)),
    ]
    assert store.acquire().messages == expected
    assert store.acquire().messages == expected
    assert store.client.hgetall("{q}:deliveries") == counts(b"old", b"1 2 3")


# -- quarantined messages


def test_a_quarantined_goes_alone_and_before_what_is_ready(store: Bench) -> None:
    store.push(b"a", b"b")
    store.quarantine(b"deadly", step=6)
    store.quarantine(b"deadly too")

    acquired = store.acquire()

    assert acquired.alone
    assert acquired.messages == [("1:1", b"deadly", DeliveryCounts(reclaimed=5))]
    assert store.state() == {
        "delayq:lease_ends": {b"q": 10},
        "q": [b"b", b"a"],
        "{q}:deliveries": counts(b"deadly", b"5 0 0") | counts(b"deadly too", b"5 0 0"),
        "{q}:leased:me": {b"1:1": b"6!\ndeadly"},
        "{q}:leases": {b"me": 10},
        "{q}:quarantined": [b"0\ndeadly too"],
        "{q}:wake": [b""],
    }


def test_a_quarantined_is_handed_out_again_for_the_same_message_id(store: Bench) -> None:
    store.push(b"a")
    store.quarantine(b"deadly")
    first = store.acquire()
    before = store.state()

    assert store.acquire() == first
    assert first.alone
    assert store.state() == before


def test_who_holds_something_takes_nothing_more_until_it_is_free_for_a_quarantined(
    store: Bench,
) -> None:
    [field] = store.hold(b"a")
    store.push(b"b")
    store.quarantine(b"deadly")

    waiting = store.acquire("2")

    assert waiting == AcquireReply(1, False, True, [])
    assert store.client.get("{q}:quarantine_turn") == b"me"
    assert 0 < store.client.pttl("{q}:quarantine_turn") <= LEASE * 1000
    assert store.client.lrange("q", 0, -1) == [b"b"]

    store.ack(field)
    message = ("3:1", b"deadly", DeliveryCounts(reclaimed=5))
    assert store.acquire("3") == AcquireReply(1, True, False, [message])
    assert not store.client.exists("{q}:quarantine_turn")


def test_the_marker_tells_of_a_quarantined_until_someone_makes_room_for_it(store: Bench) -> None:
    [field] = store.hold(b"a")
    store.quarantine(b"deadly")
    store.quarantine(b"deadly too")

    assert store.acquire("2") == AcquireReply(0, False, True, [])
    assert not store.client.exists("{q}:wake")

    store.ack(field)
    assert store.acquire("3").alone
    assert store.client.lrange("{q}:wake", 0, -1) == [b""]

    assert store.acquire("1", who="other").alone
    assert not store.client.exists("{q}:wake")


def test_an_unreadable_quarantined_is_handed_out_as_it_is(store: Bench) -> None:
    store.client.lpush("{q}:quarantined", b"\xff not what we write")

    acquired = store.acquire()

    assert (acquired.alone, bodies(acquired)) == (True, [b"\xff not what we write"])
    assert not store.client.exists("{q}:quarantined")
    assert bodies(store.acquire()) == [b"\xff not what we write"]


def test_messages_of_other_queues_count_as_held(store: Bench) -> None:
    store.push(b"a")
    store.quarantine(b"deadly")

    assert store.acquire(others=1).messages == []
    assert store.acquire(others=0).alone


def test_the_others_go_on_while_one_makes_itself_free_for_a_quarantined(store: Bench) -> None:
    store.hold(b"a", who="me")
    store.hold(b"b", who="other")
    store.push(b"c")
    store.quarantine(b"deadly")
    store.acquire("2", who="me")

    assert bodies(store.acquire("2", who="other")) == [b"c"]
    assert store.client.get("{q}:quarantine_turn") == b"me"


def test_who_holds_nothing_takes_a_quarantined_whose_turn_it_ever_is(store: Bench) -> None:
    store.hold(b"a", who="me")
    store.quarantine(b"deadly")
    store.acquire("2", who="me")

    assert bodies(store.acquire("1", who="idle")) == [b"deadly"]
    assert not store.client.exists("{q}:quarantine_turn")


def test_a_retry_that_is_not_acknowledged_yet_counts_as_held(store: Bench) -> None:
    [field] = store.hold(b"a")
    store.replace(entry("r", FAR), field=field)
    store.quarantine(b"deadly")

    assert store.acquire("2").messages == []


def test_a_request_tells_whether_stock_producers_have_pushed_some(store: Bench) -> None:
    store.push(b"ours", b"ours too")
    told = [store.leases.acquire("q", "me", LEASE, "1", 1).others]
    store.client.lpush("q", b"from stock")
    told += [store.leases.acquire("q", "me", LEASE, number, 1).others for number in "23"]

    assert told == [False, True, False]
