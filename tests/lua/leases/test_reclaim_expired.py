"""reclaim_expired.lua: what a process held that was not heard of for the length of its lease comes
back."""

from __future__ import annotations

import pytest
from redis.exceptions import ResponseError

from celery_delayq.store.keys import Layout
from celery_delayq.store.leases import Reclaimed
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
from tests.support.model_clock import go_unwatched, pass_time

pytestmark = pytest.mark.usefixtures("watched")

FAR = 4_000_000_000_000
NOTHING = Reclaimed(more=False, requeued=0, quarantined=0, dead_lettered=0)


def reclaim_expired(store: Store, *, who: str = "me", limit: int = 100, most: int = 5) -> Reclaimed:
    return store.leases.reclaim_expired(QUEUE, Layout(), who, limit, most)


def end_leases(store: Store) -> None:
    """Let all leases that are held end now."""
    pass_time(store.client, LEASE + 60)


def test_nothing_is_taken_back_before_the_lease_has_ended(store: Store) -> None:
    hold(store, b"a", b"b")
    pass_time(store.client, LEASE - 60)
    before = state(store)

    assert reclaim_expired(store) == NOTHING
    assert state(store) == before


def test_what_was_held_runs_before_what_is_ready_in_the_same_order(store: Store) -> None:
    hold(store, b"a", b"b", b"c")
    push(store, b"waiting")
    end_leases(store)

    assert reclaim_expired(store) == (False, 3, 0, 0)

    assert state(store) == {
        # Consumers pop from the right.
        "q": [b"waiting", b"c", b"b", b"a"],
        "{q}:deliveries": (
            counts(b"a", b"1 0 0") | counts(b"b", b"1 0 0") | counts(b"c", b"1 0 0")
        ),
        "{q}:wake": [b""],
    }


def test_batches_of_one_process_come_back_in_the_order_in_which_it_took_them(
    store: Store,
) -> None:
    messages = [b"%d" % n for n in range(36)]
    push(store, *messages)
    for message_id in range(1, 4):
        reserve(store, str(message_id), 12)
    end_leases(store)

    reclaim_expired(store)

    # By number: '10' comes after '9', in message ids and in places.
    assert store.client.lrange("q", 0, -1) == messages[::-1]


def test_each_message_goes_to_the_list_of_its_step(store: Store) -> None:
    for step in (0, 3, 6, 9):
        push(store, b"first %d" % step, b"second %d" % step, step=step)
    ready = {key: value for key, value in snapshot(store.client).items() if key[0] == "q"}
    reserve(store)
    end_leases(store)

    assert reclaim_expired(store).requeued == 8
    lists = {key: value for key, value in snapshot(store.client).items() if key[0] == "q"}
    assert lists == ready


def test_a_step_that_the_layout_lacks_goes_to_the_first_list(store: Store) -> None:
    hold(store, b"a", step=6)
    end_leases(store)

    store.leases.reclaim_expired(QUEUE, Layout(steps=(0, 9)), "me", 100, 5)

    assert store.client.lrange("q", 0, -1) == [b"a"]


@any_bytes
def test_any_bytes_come_back_as_they_are(store: Store, message: bytes) -> None:
    hold(store, message)
    end_leases(store)

    reclaim_expired(store)

    assert bodies(reserve(store, "2")) == [message]
    assert state(store)["{q}:deliveries"] == counts(message, b"1 0 0")


def test_calls_take_back_a_hundred_each_and_all_run_in_order(store: Store) -> None:
    # So long that Redis keeps the hash as a table, of which a part can be read.
    messages = [b"%03d" % n + b"." * 100 for n in range(450)]
    hold(store, *messages)
    end_leases(store)

    reclaimed = [reclaim_expired(store) for _ in range(6)]

    assert [(one.more, one.requeued) for one in reclaimed] == [
        *[(True, 100)] * 4,
        (False, 50),
        (False, 0),
    ]
    assert store.client.lrange("q", 0, -1) == messages[::-1]
    assert set(state(store)) == {"q", "{q}:deliveries", "{q}:wake"}


def test_a_beat_between_two_batches_keeps_the_rest(store: Store) -> None:
    hold(store, *(b"%03d" % n + b"." * 100 for n in range(300)))
    end_leases(store)
    moved = reclaim_expired(store).requeued

    assert store.leases.extend(QUEUE, "me", LEASE) == 300 - moved

    assert reclaim_expired(store) == NOTHING
    assert state(store)["delayq:lease_ends"] == {b"q": 10}


def test_a_second_call_finds_nothing_and_changes_nothing(store: Store) -> None:
    hold(store, b"a")
    end_leases(store)
    reclaim_expired(store)
    before = state(store)

    assert reclaim_expired(store) == NOTHING
    assert state(store) == before


def test_the_marker_tells_of_what_came_back(store: Store) -> None:
    hold(store, b"a")
    end_leases(store)
    assert not store.client.exists("{q}:wake")

    reclaim_expired(store)

    assert store.client.lrange("{q}:wake", 0, -1) == [b""]


def test_a_process_that_was_done_with_all_leaves_nothing(store: Store) -> None:
    fields = hold(store, b"a")
    store.leases.ack(QUEUE, "me", fields)
    end_leases(store)

    assert reclaim_expired(store) == NOTHING
    assert state(store) == {}


def test_the_message_ids_of_a_process_are_forgotten_with_all_that_it_held(store: Store) -> None:
    hold(store, *(b"%d" % n + b"." * 100 for n in range(300)), who="gone")
    hold(store, b"a", who="other", message_id="7")
    end_leases(store)

    reclaim_expired(store, who="gone")
    assert store.client.hgetall("{q}:request_numbers") == {b"gone": b"1", b"other": b"7"}

    while store.client.exists("{q}:leased:gone"):
        reclaim_expired(store, who="gone")
    assert store.client.hgetall("{q}:request_numbers") == {b"other": b"7"}


def test_a_retried_message_does_not_come_back(store: Store) -> None:
    fields = hold(store, b"a", b"b")
    store.leases.replace(QUEUE, entry("r", FAR), QUEUE, "me", fields[0], when_due="push")
    end_leases(store)

    assert reclaim_expired(store) == (False, 1, 0, 0)

    assert state(store)["q"] == [b"b"]
    assert state(store)["{q}:deliveries"] == counts(b"b", b"1 0 0")
    assert not store.client.exists("{q}:leased:me")
    assert store.scheduled(QUEUE) == 1


def test_who_held_only_a_retried_message_wakes_nobody(store: Store) -> None:
    [field] = hold(store, b"a")
    store.leases.replace(QUEUE, entry("r", FAR), QUEUE, "me", field, when_due="push")
    end_leases(store)

    assert reclaim_expired(store) == NOTHING
    assert not store.client.exists("{q}:wake", "{q}:leased:me", "{q}:leases", "delayq:lease_ends")


# -- whose


def test_what_other_processes_hold_is_not_touched(store: Store) -> None:
    hold(store, b"a", who="gone")
    pass_time(store.client, 300)
    hold(store, b"b", who="alive")
    pass_time(store.client, 360)

    assert reclaim_expired(store, who="gone") == (False, 1, 0, 0)

    assert state(store) == {
        "delayq:lease_ends": {b"q": 4},
        "q": [b"a"],
        "{q}:deliveries": counts(b"a", b"1 0 0"),
        "{q}:leased:alive": {b"1:1": b"0\nb"},
        "{q}:leases": {b"alive": 4},
        "{q}:wake": [b""],
    }


def test_there_is_more_while_another_lease_has_ended(store: Store) -> None:
    for who in ("one", "two", "three"):
        hold(store, who.encode(), who=who)
    end_leases(store)

    reclaimed = []
    while first := store.leases.first_to_end(QUEUE):
        reclaimed.append(reclaim_expired(store, who=first))

    assert [(each.more, each.requeued) for each in reclaimed] == [(True, 1), (True, 1), (False, 1)]
    assert sorted(store.client.lrange("q", 0, -1)) == [b"one", b"three", b"two"]


@pytest.mark.parametrize("who", ["unknown", ""])
def test_nobody_of_that_name_is_no_error(store: Store, who: str) -> None:
    hold(store, b"a")
    before = state(store)

    assert reclaim_expired(store, who=who) == NOTHING
    assert state(store) == before


def test_other_queues_are_not_touched(store: Store) -> None:
    push(store, b"b", queue="other")
    reserve(store, queue="other")
    hold(store, b"a")
    end_leases(store)

    reclaim_expired(store)

    assert state(store)["{other}:leased:me"] == {b"1:1": b"0\nb"}
    assert state(store)["delayq:lease_ends"] == {b"other": -1}


# -- when to look again


def test_the_next_look_is_when_the_next_lease_ends(store: Store) -> None:
    hold(store, b"a", who="one")
    pass_time(store.client, 240)
    hold(store, b"b", who="two")
    store.leases.extend(QUEUE, "one", LEASE + 120)
    assert state(store)["delayq:lease_ends"] == {b"q": 6}

    reclaim_expired(store, who="one")

    assert state(store)["delayq:lease_ends"] == {b"q": 10}


def test_a_queue_of_which_nothing_is_held_is_not_looked_at_again(store: Store) -> None:
    store.client.zadd("delayq:lease_ends", {"q": 1, "other": 2})

    assert reclaim_expired(store) == NOTHING

    assert snapshot(store.client)["delayq:lease_ends"] == {b"other": 2}


def test_a_queue_that_is_not_looked_at_is_when_its_leases_are_reclaimed(store: Store) -> None:
    hold(store, b"a")
    store.client.delete("delayq:lease_ends")

    assert reclaim_expired(store) == NOTHING

    assert state(store)["delayq:lease_ends"] == {b"q": 10}


# -- how often


def test_every_time_is_counted_beside_what_was_counted_before(store: Store) -> None:
    hold(store, b"a")
    store.client.hset("{q}:deliveries", mapping=counts(b"a", b"1 2 3"))
    end_leases(store)

    reclaim_expired(store)

    assert state(store)["{q}:deliveries"] == counts(b"a", b"2 2 3")


def test_a_message_that_is_held_too_often_is_a_quarantined_and_then_dead(store: Store) -> None:
    push(store, b"deadly", step=3)
    reclaimed = []
    for message_id in ("1", "2", "3", "4"):
        assert bodies(reserved := reserve(store, message_id)) == [b"deadly"]
        assert reserved.alone == (message_id == "4")
        end_leases(store)
        reclaimed.append(reclaim_expired(store, most=3)[1:])
        if message_id == "3":
            assert state(store) == {
                "{q}:deliveries": counts(b"deadly", b"3 0 0"),
                "{q}:quarantined": [b"3\ndeadly"],
                "{q}:wake": [b""],
            }
            store.client.delete("{q}:wake")

    assert reclaimed == [(1, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    assert set(state(store)) == {"{q}:dead", "{q}:dead_at"}
    [dead_letter] = store.dead_letters.all(QUEUE)
    assert dead_letter.reason == "its worker died 4 times, the last time with nothing else"
    assert dead_letter.message == b"deadly"
    assert dead_letter.details == b'{"worker": "me", "deliveries": 4}'
    assert abs(dead_letter.died_ms - store.now_ms()) < 5000


def test_a_quarantined_that_is_done_at_last_is_forgotten(store: Store) -> None:
    hold(store, b"a")
    end_leases(store)
    reclaim_expired(store, most=1)
    assert reserve(store, "2").alone

    store.leases.ack(QUEUE, "me", ["2:1"])

    assert state(store) == {"delayq:lease_ends": {b"q": 10}, "{q}:leases": {b"me": 10}}


def test_what_died_among_others_is_never_dead_at_once(store: Store) -> None:
    # The limit was lowered, or its neighbours killed its processes.
    hold(store, b"a")
    store.client.hset("{q}:deliveries", mapping=counts(b"a", b"70 0 0"))
    end_leases(store)

    assert reclaim_expired(store, most=5) == (False, 0, 1, 0)
    assert state(store)["{q}:deliveries"] == counts(b"a", b"71 0 0")


def test_only_what_comes_too_often_is_a_quarantined(store: Store) -> None:
    hold(store, b"a", b"b", b"c")
    store.client.hset("{q}:deliveries", mapping=counts(b"b", b"1 0 0"))
    end_leases(store)

    assert reclaim_expired(store, most=2) == (False, 2, 1, 0)
    assert state(store)["q"] == [b"c", b"a"]
    assert state(store)["{q}:quarantined"] == [b"0\nb"]


def test_quarantined_come_one_by_one_those_that_waited_before_first(store: Store) -> None:
    store.client.lpush("{q}:quarantined", b"0\nwaited")
    push(store, b"ready")
    store.client.hset("{q}:leased:me", mapping={"1:1": b"0\na", "1:2": b"0\nb"})
    store.client.zadd("{q}:leases", {"me": 1})
    assert reclaim_expired(store, most=1).quarantined == 2

    taken = []
    for message_id in ("2", "3", "4", "5"):
        taken += bodies(reserve(store, message_id))
        store.leases.ack(QUEUE, "me", [f"{message_id}:1"])

    assert (taken[0], sorted(taken[1:3]), taken[3]) == (b"waited", [b"a", b"b"], b"ready")


def test_without_a_limit_nothing_is_ever_quarantined(store: Store) -> None:
    hold(store, b"a")
    store.client.hset("{q}:deliveries", mapping=counts(b"a", b"1000 0 0"))
    end_leases(store)

    assert reclaim_expired(store, most=0) == (False, 1, 0, 0)
    assert state(store)["q"] == [b"a"]


def test_a_quarantined_is_not_dead_when_the_limit_was_lifted(store: Store) -> None:
    store.client.lpush("{q}:quarantined", b"3\ndeadly")
    store.client.hset("{q}:deliveries", mapping=counts(b"deadly", b"9 0 0"))
    reserve(store)
    end_leases(store)

    assert reclaim_expired(store, most=0) == (False, 1, 0, 0)
    assert state(store)["q\x06\x163"] == [b"deadly"]


@pytest.mark.parametrize(
    ("before", "expected"), [(1, (1, 0, 0)), (2, (0, 1, 0)), (3, (0, 0, 1)), (4, (0, 0, 1))]
)
def test_a_quarantined_is_not_dead_before_the_limit_where_that_was_raised(
    store: Store, before: int, expected: tuple[int, int, int]
) -> None:
    store.client.lpush("{q}:quarantined", b"0\ndeadly")
    store.client.hset("{q}:deliveries", mapping=counts(b"deadly", b"%d 0 0" % before))
    assert reserve(store).alone
    end_leases(store)

    assert reclaim_expired(store, most=3) == (False, *expected)


@any_bytes
def test_a_quarantined_and_its_dead_letter_are_kept_byte_for_byte(
    store: Store, message: bytes
) -> None:
    hold(store, message)
    end_leases(store)
    reclaim_expired(store, most=1)
    assert store.client.lrange("{q}:quarantined", 0, -1) == [b"0\n" + message]
    assert bodies(reserve(store, "2")) == [message]
    end_leases(store)

    assert reclaim_expired(store, most=1) == (False, 0, 0, 1)

    assert [dead_letter.message for dead_letter in store.dead_letters.all(QUEUE)] == [message]


# -- what may be in the way


def test_a_lease_that_nobody_looked_at_has_not_ended(store: Store) -> None:
    # Redis stood still while a dispatcher was on its way from dispatch/next_queue.lua to here.
    hold(store, b"a")
    go_unwatched(store.client, 3600)

    assert reclaim_expired(store) == NOTHING
    assert store.client.hlen("{q}:leased:me") == 1


def test_what_is_held_and_unreadable_is_a_dead_letter(store: Store) -> None:
    hold(store, b"a")
    store.client.hset("{q}:leased:me", "1:2", b"\xff not what we write")
    end_leases(store)

    assert reclaim_expired(store) == (False, 1, 0, 1)

    assert state(store)["q"] == [b"a"]
    assert not store.client.exists("{q}:leased:me")
    assert [dead_letter.message for dead_letter in store.dead_letters.all(QUEUE)] == [
        b"\xff not what we write"
    ]


def test_a_field_that_is_no_tag_is_taken_back_too(store: Store) -> None:
    hold(store, b"a", b"b")
    store.client.hset("{q}:leased:me", "no tag", b"3\nc")
    end_leases(store)

    assert reclaim_expired(store) == (False, 3, 0, 0)
    assert state(store)["q\x06\x163"] == [b"c"]


@pytest.mark.parametrize(
    "key",
    [
        "q",
        "q\x06\x163",
        "delayq:clock",
        "delayq:lease_ends",
        "{q}:dead",
        "{q}:dead_at",
        "{q}:deliveries",
        "{q}:leased:me",
        "{q}:leases",
        "{q}:request_numbers",
        "{q}:quarantined",
    ],
)
def test_a_key_of_another_type_leaves_everything_held(store: Store, key: str) -> None:
    hold(store, b"a", b"b", step=6)
    end_leases(store)
    if key == "delayq:clock":
        store.client.zadd("{q}:leases", {"me": 1})
    store.client.set(key, "not ours")
    before = snapshot(store.client)

    with pytest.raises(ResponseError, match="WRONGTYPE"):
        reclaim_expired(store, most=1)

    assert snapshot(store.client) == before


def test_a_full_server_lets_messages_come_back(store: Store) -> None:
    hold(store, b"a", b"b")
    push(store, b"deadly")
    store.client.hset("{q}:deliveries", mapping=counts(b"b", b"1 0 0"))
    end_leases(store)
    fill(store)

    assert reclaim_expired(store, most=2) == (False, 1, 1, 0)
    assert state(store)["q"] == [b"deadly", b"a"]
    assert reserve(store, "2").alone
    store.client.config_set("maxmemory", 0)
    end_leases(store)
    fill(store)
    assert reclaim_expired(store, most=2) == (False, 0, 0, 1)
