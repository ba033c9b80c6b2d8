"""reclaim_expired.lua: messages of a process without heartbeats come back after its lease."""

from __future__ import annotations

from typing import Any

import pytest

from celery_delayq.store.keys import Layout
from celery_delayq.store.leases import Reclaimed
from tests.lua.bench import FAR, LEASE, QUEUE, Bench, Calls, bodies, counts, entry
from tests.support.lease_time import go_unwatched

#: One call of each script here, and a reply to it.
SCRIPT_CALLS: Calls = {
    "leases/reclaim_expired": (
        lambda s: s.leases.reclaim_expired("q", Layout(), "me", 100, 5),
        [b"0", 1, 0, 0],
    ),
}

NOTHING = Reclaimed(more=False, requeued=0, quarantined=0, dead_lettered=0)


def test_nothing_is_taken_back_before_the_lease_has_ended(store: Bench) -> None:
    store.hold(b"a", b"b")
    store.pass_time(LEASE - 60)
    before = store.state()

    assert store.reclaim_expired() == NOTHING
    assert store.state() == before


def test_what_was_held_runs_before_what_is_ready_in_the_same_order(store: Bench) -> None:
    store.hold(b"a", b"b", b"c")
    store.push(b"waiting")
    store.pass_time()

    assert store.reclaim_expired() == (False, 3, 0, 0)

    assert store.state() == {
        # Consumers pop from the right.
        "q": [b"waiting", b"c", b"b", b"a"],
        "{q}:deliveries": (
            counts(b"a", b"1 0 0") | counts(b"b", b"1 0 0") | counts(b"c", b"1 0 0")
        ),
        "{q}:wake": [b""],
    }


def test_batches_of_one_process_come_back_in_the_order_in_which_it_took_them(
    store: Bench,
) -> None:
    messages = [b"%d" % n for n in range(36)]
    store.push(*messages)
    for message_id in range(1, 4):
        store.acquire(str(message_id), 12)
    store.pass_time()

    store.reclaim_expired()

    # By number: '10' comes after '9', in request numbers and in places.
    assert store.client.lrange("q", 0, -1) == messages[::-1]


def test_each_message_goes_to_the_list_of_its_step(store: Bench) -> None:
    for step in (0, 3, 6, 9):
        store.push(b"first %d" % step, b"second %d" % step, step=step)
    ready = {key: value for key, value in store.state().items() if key[0] == "q"}
    store.acquire()
    store.pass_time()

    assert store.reclaim_expired().requeued == 8
    lists = {key: value for key, value in store.state().items() if key[0] == "q"}
    assert lists == ready


def test_a_step_that_the_layout_lacks_goes_to_the_first_list(store: Bench) -> None:
    store.hold(b"a", step=6)
    store.pass_time()

    store.leases.reclaim_expired(QUEUE, Layout(steps=(0, 9)), "me", 100, 5)

    assert store.client.lrange("q", 0, -1) == [b"a"]


def test_calls_take_back_a_hundred_each_and_all_run_in_order(store: Bench) -> None:
    # Redis stores a hash of this size as a table, of which it can read a part.
    messages = [b"%03d" % n + b"." * 100 for n in range(450)]
    store.hold(*messages)
    store.pass_time()

    reclaimed = [store.reclaim_expired() for _ in range(6)]

    assert [(one.more, one.requeued) for one in reclaimed] == [
        *[(True, 100)] * 4,
        (False, 50),
        (False, 0),
    ]
    assert store.client.lrange("q", 0, -1) == messages[::-1]
    assert set(store.state()) == {"q", "{q}:deliveries", "{q}:wake"}


def test_a_beat_between_two_batches_keeps_the_rest(store: Bench) -> None:
    store.hold(*(b"%03d" % n + b"." * 100 for n in range(300)))
    store.pass_time()
    moved = store.reclaim_expired().requeued

    assert store.leases.extend(QUEUE, "me", LEASE) == 300 - moved

    assert store.reclaim_expired() == NOTHING
    assert store.state()["delayq:lease_ends"] == {b"q": 10}


def test_a_process_that_was_done_with_all_leaves_nothing(store: Bench) -> None:
    fields = store.hold(b"a")
    store.ack(*fields)
    store.pass_time()

    assert store.reclaim_expired() == NOTHING
    assert store.state() == {}


def test_the_message_ids_of_a_process_are_forgotten_with_all_that_it_held(store: Bench) -> None:
    store.hold(*(b"%d" % n + b"." * 100 for n in range(300)), who="gone")
    store.hold(b"a", who="other", number="7")
    store.pass_time()

    store.reclaim_expired(who="gone")
    assert store.client.hgetall("{q}:request_numbers") == {b"gone": b"1", b"other": b"7"}

    while store.client.exists("{q}:leased:gone"):
        store.reclaim_expired(who="gone")
    assert store.client.hgetall("{q}:request_numbers") == {b"other": b"7"}


def test_a_retried_message_does_not_come_back(store: Bench) -> None:
    fields = store.hold(b"a", b"b")
    store.replace(entry("r", FAR), field=fields[0])
    store.pass_time()

    assert store.reclaim_expired() == (False, 1, 0, 0)

    assert store.state()["q"] == [b"b"]
    assert store.state()["{q}:deliveries"] == counts(b"b", b"1 0 0")
    assert not store.client.exists("{q}:leased:me")
    assert store.scheduled(QUEUE) == 1


def test_who_held_only_a_retried_message_wakes_nobody(store: Bench) -> None:
    [field] = store.hold(b"a")
    store.replace(entry("r", FAR), field=field)
    store.pass_time()

    assert store.reclaim_expired() == NOTHING
    assert not store.client.exists("{q}:wake", "{q}:leased:me", "{q}:leases", "delayq:lease_ends")


# -- which process


def test_what_other_processes_hold_is_not_touched(store: Bench) -> None:
    store.hold(b"a", who="gone")
    store.pass_time(300)
    store.hold(b"b", who="alive")
    store.pass_time(360)

    assert store.reclaim_expired(who="gone") == (False, 1, 0, 0)

    assert store.state() == {
        "delayq:lease_ends": {b"q": 4},
        "q": [b"a"],
        "{q}:deliveries": counts(b"a", b"1 0 0"),
        "{q}:leased:alive": {b"1:1": b"0\nb"},
        "{q}:leases": {b"alive": 4},
        "{q}:wake": [b""],
    }


def test_there_is_more_while_another_lease_has_ended(store: Bench) -> None:
    for who in ("one", "two", "three"):
        store.hold(who.encode(), who=who)
    store.pass_time()

    reclaimed = []
    while first := store.leases.first_ended_lease(QUEUE):
        reclaimed.append(store.reclaim_expired(who=first))

    assert [(each.more, each.requeued) for each in reclaimed] == [(True, 1), (True, 1), (False, 1)]
    assert sorted(store.client.lrange("q", 0, -1)) == [b"one", b"three", b"two"]


@pytest.mark.parametrize("who", ["unknown", ""])
def test_nobody_of_that_name_is_no_error(store: Bench, who: str) -> None:
    store.hold(b"a")
    before = store.state()

    assert store.reclaim_expired(who=who) == NOTHING
    assert store.state() == before


def test_other_queues_are_not_touched(store: Bench) -> None:
    store.push(b"b", queue="other")
    store.acquire(queue="other")
    store.hold(b"a")
    store.pass_time()

    store.reclaim_expired()

    assert store.state()["{other}:leased:me"] == {b"1:1": b"0\nb"}
    assert store.state()["delayq:lease_ends"] == {b"other": -1}


# -- the next look


def test_the_next_look_is_when_the_next_lease_ends(store: Bench) -> None:
    store.hold(b"a", who="one")
    store.pass_time(240)
    store.hold(b"b", who="two")
    store.leases.extend(QUEUE, "one", LEASE + 120)
    assert store.state()["delayq:lease_ends"] == {b"q": 6}

    store.reclaim_expired(who="one")

    assert store.state()["delayq:lease_ends"] == {b"q": 10}


def test_a_queue_of_which_nothing_is_held_is_not_looked_at_again(store: Bench) -> None:
    store.client.zadd("delayq:lease_ends", {"q": 1, "other": 2})

    assert store.reclaim_expired() == NOTHING

    assert store.client.zrange("delayq:lease_ends", 0, -1, withscores=True) == [(b"other", 2)]


def test_a_queue_that_is_not_looked_at_is_when_its_leases_are_reclaimed(store: Bench) -> None:
    store.hold(b"a")
    store.client.delete("delayq:lease_ends")

    assert store.reclaim_expired() == NOTHING

    assert store.state()["delayq:lease_ends"] == {b"q": 10}


# -- counts of deliveries


def test_a_message_that_is_held_too_often_is_a_quarantined_and_then_dead(store: Bench) -> None:
    store.push(b"deadly", step=3)
    before, reclaimed = store.now_ms(), []
    for message_id in ("1", "2", "3", "4"):
        assert bodies(acquired := store.acquire(message_id)) == [b"deadly"]
        assert acquired.alone == (message_id == "4")
        store.pass_time()
        reclaimed.append(store.reclaim_expired(max_deliveries=3)[1:])
        if message_id == "3":
            assert store.state() == {
                "{q}:deliveries": counts(b"deadly", b"3 0 0"),
                "{q}:quarantined": [b"3\ndeadly"],
                "{q}:wake": [b""],
            }
            store.client.delete("{q}:wake")

    assert reclaimed == [(1, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    assert set(store.state()) == {"{q}:dead", "{q}:dead_at"}
    [dead_letter] = store.dead_letters.all(QUEUE)
    assert dead_letter.reason == "its worker died 4 times, the last time with no other message"
    assert dead_letter.message == b"deadly"
    assert dead_letter.details == b'{"worker": "me", "deliveries": 4}'
    assert before <= dead_letter.died_ms <= store.now_ms()


@pytest.mark.parametrize(
    ("alone", "before", "most", "expected"),
    [
        # The limit was lowered, or other messages have killed its processes.
        (False, 70, 5, "quarantined"),
        (False, 1000, 0, "requeued"),
        (True, 9, 0, "requeued"),
        # The limit was raised.
        (True, 1, 3, "requeued"),
        (True, 2, 3, "quarantined"),
        (True, 3, 3, "dead_lettered"),
        (True, 4, 3, "dead_lettered"),
    ],
)
def test_only_what_was_delivered_alone_dies_and_only_beyond_the_limit(
    store: Bench, alone: bool, before: int, most: int, expected: str
) -> None:
    if alone:
        store.quarantine(b"deadly", 3)
    else:
        store.push(b"deadly", step=3)
    store.delivered(b"deadly", b"%d 2 3" % before)
    assert store.acquire().alone is alone
    store.pass_time()

    one: Any = {expected: 1}
    assert store.reclaim_expired(max_deliveries=most) == NOTHING._replace(**one)

    if expected != "dead_lettered":
        assert store.state()["{q}:deliveries"] == counts(b"deadly", b"%d 2 3" % (before + 1))
        place = "{q}:quarantined" if expected == "quarantined" else "q\x06\x163"
        assert store.client.lrange(place, 0, -1)[0].endswith(b"deadly")


def test_only_what_comes_too_often_is_a_quarantined(store: Bench) -> None:
    store.hold(b"a", b"b", b"c")
    store.delivered(b"b", b"1 0 0")
    store.pass_time()

    assert store.reclaim_expired(max_deliveries=2) == (False, 2, 1, 0)
    assert store.state()["q"] == [b"c", b"a"]
    assert store.state()["{q}:quarantined"] == [b"0\nb"]


def test_quarantined_come_one_by_one_those_that_waited_before_first(store: Bench) -> None:
    store.client.lpush("{q}:quarantined", b"0\nwaited")
    store.push(b"ready")
    store.client.hset("{q}:leased:me", mapping={"1:1": b"0\na", "1:2": b"0\nb"})
    store.client.zadd("{q}:leases", {"me": 1})
    assert store.reclaim_expired(max_deliveries=1).quarantined == 2

    taken = []
    for message_id in ("2", "3", "4", "5"):
        taken += bodies(store.acquire(message_id))
        store.ack(f"{message_id}:1")

    assert (taken[0], sorted(taken[1:3]), taken[3]) == (b"waited", [b"a", b"b"], b"ready")


# -- a full server, and unreadable values


def test_a_lease_that_nobody_looked_at_has_not_ended(store: Bench) -> None:
    # Redis stood still between a dispatcher's dispatch/next_queue.lua and this call.
    store.hold(b"a")
    go_unwatched(store.client, 3600)

    assert store.reclaim_expired() == NOTHING
    assert store.client.hlen("{q}:leased:me") == 1


def test_what_is_held_and_unreadable_is_a_dead_letter(store: Bench) -> None:
    store.hold(b"a")
    store.client.hset("{q}:leased:me", "1:2", b"\xff not what we write")
    store.pass_time()

    assert store.reclaim_expired() == (False, 1, 0, 1)

    assert store.state()["q"] == [b"a"]
    assert not store.client.exists("{q}:leased:me")
    assert store.dead_messages() == [b"\xff not what we write"]


def test_a_field_that_is_no_tag_is_taken_back_too(store: Bench) -> None:
    store.hold(b"a", b"b")
    store.client.hset("{q}:leased:me", "no tag", b"3\nc")
    store.pass_time()

    assert store.reclaim_expired() == (False, 3, 0, 0)
    assert store.state()["q\x06\x163"] == [b"c"]
