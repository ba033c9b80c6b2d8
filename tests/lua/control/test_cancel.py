"""cancel.lua: what no process holds yet never runs; what one holds is left alone."""

from __future__ import annotations

import pytest
from redis.exceptions import ResponseError

from celery_delayq.model.lookup import Name, StatusCode
from celery_delayq.store.keys import Layout
from celery_delayq.store.schedule import Store
from tests.lua.conftest import (
    FAR,
    LAYOUT,
    LEASE,
    QUEUE,
    STATE_KEYS,
    as_scheduled,
    become_due,
    bodies,
    counts,
    entry,
    fill,
    labelled,
    make_ready,
    message_of,
    push,
    put,
    repeating,
    reserve,
    state,
    taken_by,
)
from tests.support.keyspace import snapshot
from tests.support.model_clock import pass_time

pytestmark = pytest.mark.usefixtures("watched")

REGISTERED = {"delayq:queues": {b"q": LAYOUT}}


def cancel(store: Store, *ids: str, if_due: int | None = None) -> list[StatusCode]:
    return store.control.cancel(QUEUE, Layout(), ids, if_due=if_due)


# -- scheduled


@pytest.mark.parametrize("what", [labelled("a"), entry("a", FAR)], ids=["labelled", "unlabelled"])
def test_of_a_scheduled_entry_nothing_is_left(store: Store, what: object) -> None:
    put(store, what)  # type: ignore[arg-type]

    assert cancel(store, "a") == ["d"]
    assert state(store) == REGISTERED


def test_the_next_due_goes_on_to_the_next(store: Store) -> None:
    put(store, labelled("a", FAR), labelled("b", FAR + 5))

    assert cancel(store, "a") == ["d"]
    assert state(store) == as_scheduled(labelled("b", FAR + 5))


def test_each_id_has_its_dead_letter_in_the_order_of_the_call(store: Store) -> None:
    make_ready(store, labelled("running"))
    reserve(store)
    put(store, labelled("a"), labelled("b"))

    assert cancel(store, "b", "never was", "running", "a", "b") == ["d", "u", "r", "d", "u"]
    assert "{q}:due" not in state(store)


def test_many_ids_are_many_calls_with_an_answer_for_each(store: Store) -> None:
    ids = [f"e{n}" for n in range(250)]
    put(store, *map(labelled, ids[::2]))

    assert cancel(store, *ids) == ["d", "u"] * 125
    assert state(store) == REGISTERED
    assert len(store.client.keys("{q}:answer:*")) == 3
    assert cancel(store) == []


@pytest.mark.parametrize("id", ["", "ä ☃", "a b\n%", "x" * 2000, "nul\0inside", '"quoted\\"'])
def test_any_id_will_do(store: Store, id: str) -> None:
    make_ready(store, labelled(id, message_id="ready"))
    put(store, labelled(id, message_id="scheduled"))

    assert cancel(store, id) == ["d"]
    assert reserve(store).messages == []
    assert state(store) == REGISTERED


def test_what_is_paused_due_is_cancelled_too(store: Store) -> None:
    store.control.pause([], task="tasks.t")
    put(store, labelled("a"))
    become_due(store, "a")
    store.promote(QUEUE, Layout(), 100)
    assert "{q}:paused_due" in state(store)

    assert cancel(store, "a", if_due=2) == ["c"]
    assert cancel(store, "a", if_due=1) == ["d"]
    assert state(store).keys() == {"delayq:control", "delayq:queues"}


def test_an_unreadable_record_is_cancelled_too(store: Store) -> None:
    store.client.zadd("{q}:due", {"a": FAR})
    store.client.hset("{q}:entries", "a", b"\xff no record")

    assert cancel(store, "a") == ["d"]
    assert state(store) == {}


# -- ready


def test_what_is_ready_is_dropped_when_its_turn_comes(store: Store) -> None:
    one, other = labelled("a"), labelled("b")
    make_ready(store, one, other)

    assert cancel(store, "a") == ["d"]
    assert state(store) == REGISTERED | {
        "q": [message_of(other), message_of(one)],
        "{q}:ready_index": {b"a": b"!n-a 1 - tasks.t", b"b": b"n-b 1 - tasks.t"},
    }
    assert cancel(store, "a") == ["u"]

    assert bodies(reserve(store)) == [message_of(other)]
    store.leases.ack(QUEUE, "me", ["1:1"])
    assert state(store).keys() - {"delayq:lease_ends", "{q}:leases"} == {"delayq:queues"}


def test_a_batch_of_cancelled_messages_is_passed_over_and_the_caller_asks_again(
    store: Store,
) -> None:
    entries = [labelled(f"e{n}") for n in range(5)]
    make_ready(store, *entries)
    cancel(store, *(each.id for each in entries[:4]))

    first = reserve(store, "1", 3)
    assert (first.messages, first.more) == ([], 1)
    assert store.client.exists("{q}:wake")
    second = reserve(store, "2", 3)
    assert (bodies(second), second.more) == ([message_of(entries[4])], 0)


def test_of_a_dropped_message_it_is_not_known_how_often_it_came_back(store: Store) -> None:
    what = labelled("a")
    make_ready(store, what)
    reserve(store)
    store.leases.requeue(QUEUE, "me", ["1:1"], counted="requeued")
    assert state(store)["{q}:deliveries"] == counts(message_of(what), b"0 0 1")
    cancel(store, "a")

    assert reserve(store, "2").messages == []
    assert "{q}:deliveries" not in state(store)


def test_a_message_without_a_label_is_not_found(store: Store) -> None:
    push(store, b'{"id": "a"}')
    before = state(store)

    assert cancel(store, "a") == ["u"]
    assert state(store) == before


def test_what_is_to_be_delivered_alone_is_dropped_too(store: Store) -> None:
    make_ready(store, labelled("a"), labelled("b"))
    reserve(store, "1", 1)
    pass_time(store.client, LEASE + 60)
    assert store.leases.reclaim_expired(QUEUE, Layout(), "me", 100, 1).quarantined == 1
    assert cancel(store, "a") == ["d"]

    first, second = reserve(store, "2"), reserve(store, "3")

    assert (first.messages, first.alone, first.more) == ([], False, 1)
    assert bodies(second) == [message_of(labelled("b"))]
    assert {"{q}:deliveries", "{q}:quarantined", "{q}:ready_index"}.isdisjoint(state(store))


def test_what_stock_workers_took_is_not_said_to_be_cancelled(store: Store) -> None:
    make_ready(store, labelled("a", unique="dk"), labelled("b"))
    assert len(store.client.rpop("q", 2) or []) == 2

    assert cancel(store, "a", "b") == ["u", "u"]
    assert state(store) == REGISTERED


# -- running


def test_what_a_process_holds_is_left_alone(store: Store) -> None:
    make_ready(store, labelled("a", unique="dk"))
    reserve(store)
    before = state(store)

    assert cancel(store, "a") == ["r"]
    assert state(store) == before


def test_what_is_done_is_unknown(store: Store) -> None:
    make_ready(store, labelled("a"))
    reserve(store)
    store.leases.ack(QUEUE, "me", ["1:1"])

    assert cancel(store, "a") == ["u"]


def test_what_came_back_from_a_process_is_cancelled(store: Store) -> None:
    make_ready(store, labelled("a"))
    reserve(store)
    store.leases.requeue(QUEUE, "me", ["1:1"])

    assert cancel(store, "a") == ["d"]
    assert reserve(store, "2").messages == []


# -- several with one id


def make_triplets(store: Store) -> None:
    """One that runs, one that is ready and two that are scheduled."""
    make_ready(store, labelled("a", message_id="n1"))
    reserve(store)
    make_ready(store, labelled("a", message_id="n2"))
    put(store, labelled("a", message_id="n3"), labelled("a", FAR + 1, message_id="n4"))


def test_all_that_have_the_id_are_cancelled_but_for_those_that_run(store: Store) -> None:
    make_triplets(store)

    assert cancel(store, "a") == ["r"]
    assert reserve(store, "2").messages == []
    found = state(store)
    assert found["{q}:leased_index"] == {b"a": b"n1 1 - tasks.t me"}
    assert {"{q}:due", "{q}:entries", "{q}:tasks", "{q}:ready_index"}.isdisjoint(found)

    store.leases.ack(QUEUE, "me", ["1:1"])
    assert "{q}:duplicate_ids" not in state(store)


@pytest.mark.parametrize(
    ("name", "left"), [("a", [b"a\0n2", b"a\0n3"]), ("a\0n3", [b"a", b"a\0n2"])]
)
def test_a_name_stands_for_itself_alone(store: Store, name: str, left: list[bytes]) -> None:
    for n in (1, 2, 3):
        put(store, labelled("a", FAR + n, message_id=f"n{n}"))

    assert cancel(store, Name(name)) == ["d"]
    assert store.client.zrange("{q}:due", 0, -1) == left
    assert cancel(store, Name(name)) == ["u"]

    assert cancel(store, "a") == ["d"]
    assert state(store) == REGISTERED


def test_ids_that_begin_alike_are_different(store: Store) -> None:
    for id in ("a", "ab", "a\1", "A"):
        put(store, labelled(id, message_id="first"), labelled(id, message_id="duplicate"))

    assert cancel(store, "a") == ["d"]
    assert len(store.client.hkeys("{q}:entries")) == 6


# -- only at a certain due


def test_what_is_due_at_another_time_stays(store: Store) -> None:
    put(store, labelled("scheduled"))
    make_ready(store, labelled("ready"), due_ms=7)
    before = state(store)

    assert cancel(store, "scheduled", "ready", if_due=8) == ["c", "c"]
    assert state(store) == before
    assert cancel(store, "scheduled", "ready", if_due=7) == ["c", "d"]
    assert cancel(store, "scheduled", if_due=FAR) == ["d"]


def test_of_duplicate_ids_only_that_with_the_due_goes(store: Store) -> None:
    put(store, labelled("a", FAR, message_id="n1"), labelled("a", FAR + 1, message_id="n2"))

    assert cancel(store, "a", if_due=FAR + 1) == ["c"]
    assert store.client.hkeys("{q}:entries") == [b"a"]


# -- unique keys


def test_the_unique_key_is_free_again(store: Store) -> None:
    put(store, labelled("scheduled", unique="dk1"))
    make_ready(store, labelled("ready", unique="dk2"))

    assert cancel(store, "scheduled", "ready") == ["d", "d"]
    assert "{q}:unique" not in state(store)


def test_the_key_of_another_with_the_same_id_stays_taken(store: Store) -> None:
    put(store, labelled("a", message_id="n1", unique="dk"))
    make_ready(store, labelled("a", message_id="n2"), labelled("a", message_id="n3", unique="dl"))
    assert state(store)["{q}:unique"] == {b"k": taken_by("a", "n1"), b"l": taken_by("a", "n3")}

    assert cancel(store, Name("a\0n3")) == ["d"]
    assert reserve(store).messages == [
        ("1:1", message_of(labelled("a", message_id="n2")), (0, 0, 0))
    ]
    store.leases.ack(QUEUE, "me", ["1:1"])
    assert state(store)["{q}:unique"] == {b"k": taken_by("a", "n1")}


# -- repeats, and what may be in the way


def test_a_repeat_gets_the_same_answer_whatever_was_sent_meanwhile(store: Store) -> None:
    put(store, labelled("a"), labelled("b"))
    again = repeating(store, lambda: put(store, labelled("a", message_id="new")))

    assert cancel(again, "a", "gone") == ["d", "u"]
    assert state(store) == as_scheduled(labelled("b"), labelled("a", message_id="new"))


def test_an_answer_is_kept_for_a_minute(store: Store) -> None:
    put(store, labelled("a"))
    cancel(store, "a")

    [key] = store.client.keys("{q}:answer:*")
    assert store.client.get(key) == b"d"
    assert 50 <= store.client.ttl(key) <= 60


def test_a_full_server_lets_it_pass(store: Store) -> None:
    put(store, labelled("a", unique="dk"))
    make_ready(store, labelled("b"))
    fill(store)

    assert cancel(repeating(store), "a", "b") == ["d", "d"]
    assert reserve(store).messages == []
    assert state(store) == REGISTERED


@pytest.mark.parametrize("key", ["delayq:next_due", "q", "{q}:quarantined", *STATE_KEYS])
def test_a_key_of_another_type_is_an_error_before_anything_is_written(
    store: Store, key: str
) -> None:
    put(store, labelled("a", unique="dk"))
    make_ready(store, labelled("b", unique="dl"))
    store.client.set(key, "not ours")
    before = snapshot(store.client)

    with pytest.raises(ResponseError, match="WRONGTYPE"):
        cancel(store, "a", "b")

    assert snapshot(store.client) == before
