"""cancel.lua: a message that is not leased never runs; a leased one is left alone."""

from __future__ import annotations

import pytest

from celery_delayq.model.envelope import Entry
from celery_delayq.model.script_values import Name
from celery_delayq.store import control
from celery_delayq.store.keys import Layout
from tests.lua.bench import (
    FAR,
    REGISTERED,
    Bench,
    Calls,
    as_scheduled,
    bodies,
    counts,
    entry,
    labelled,
    message_of,
    repeating,
    taken_by,
)

#: One call of each script here, and a reply to it.
SCRIPT_CALLS: Calls = {
    "control/cancel": (lambda s: s.control.cancel("q", Layout(), ["id"]), b"d"),
}

# -- scheduled


@pytest.mark.parametrize("what", [labelled("a"), entry("a", FAR)], ids=["labelled", "unlabelled"])
def test_of_a_scheduled_entry_nothing_is_left(store: Bench, what: Entry) -> None:
    store.put(what)

    assert store.cancel("a") == ["d"]
    assert store.state() == REGISTERED


def test_the_next_due_goes_on_to_the_next(store: Bench) -> None:
    store.put(labelled("a", FAR), labelled("b", FAR + 5))

    assert store.cancel("a") == ["d"]
    assert store.state() == as_scheduled(labelled("b", FAR + 5))


def test_each_id_has_its_dead_letter_in_the_order_of_the_call(store: Bench) -> None:
    store.lease(labelled("running"))
    store.put(labelled("a"), labelled("b"))

    assert store.cancel("b", "never was", "running", "a", "b") == ["d", "u", "r", "d", "u"]
    assert "{q}:due" not in store.state()


def test_many_ids_are_many_calls_with_an_answer_for_each(store: Bench) -> None:
    ids = [f"e{n}" for n in range(5 * control.ID_BATCH)]
    store.put(*map(labelled, ids[::2]))

    assert store.cancel(*ids) == [*["d", "u"] * len(ids)][: len(ids)]
    assert store.state() == REGISTERED
    assert len(store.client.keys("{q}:answer:*")) == 3
    assert store.cancel() == []


@pytest.mark.parametrize("id", ["", "ä ☃", "a b\n%", "x" * 2000, "nul\0inside", '"quoted\\"'])
def test_any_id_will_do(store: Bench, id: str) -> None:
    store.make_ready(labelled(id, message_id="ready"))
    store.put(labelled(id, message_id="scheduled"))

    assert store.cancel(id) == ["d"]
    assert store.acquire().messages == []
    assert store.state() == REGISTERED


def test_what_is_paused_due_is_cancelled_too(store: Bench) -> None:
    store.put(labelled("a"))
    store.pause_due("a")
    assert "{q}:paused_due" in store.state()

    assert store.cancel("a", if_due=2) == ["c"]
    assert store.cancel("a", if_due=1) == ["d"]
    assert store.state().keys() == {"delayq:control", "delayq:queues"}


def test_an_unreadable_record_is_cancelled_too(store: Bench) -> None:
    store.client.zadd("{q}:due", {"a": FAR})
    store.client.hset("{q}:entries", "a", b"\xff no record")

    assert store.cancel("a") == ["d"]
    assert store.state() == {}


# -- ready


def test_what_is_ready_is_dropped_when_its_turn_comes(store: Bench) -> None:
    one, other = labelled("a"), labelled("b")
    store.make_ready(one, other)

    assert store.cancel("a") == ["m"]
    assert store.state() == REGISTERED | {
        "q": [message_of(other), message_of(one)],
        "{q}:ready_index": {b"a": b"!n-a 1 - tasks.t", b"b": b"n-b 1 - tasks.t"},
    }
    assert store.cancel("a") == ["u"]

    assert bodies(store.acquire()) == [message_of(other)]
    store.ack("1:1")
    assert store.state().keys() - {"delayq:lease_ends", "{q}:leases"} == {"delayq:queues"}


def test_a_batch_of_cancelled_messages_is_passed_over_and_the_caller_asks_again(
    store: Bench,
) -> None:
    entries = [labelled(f"e{n}") for n in range(5)]
    store.make_ready(*entries)
    store.cancel(*(each.id for each in entries[:4]))

    first = store.acquire("1", 3)
    assert (first.messages, first.first_list) == ([], 1)
    assert store.client.exists("{q}:wake")
    second = store.acquire("2", 3)
    assert (bodies(second), second.first_list) == ([message_of(entries[4])], 0)


def test_of_a_dropped_message_it_is_not_known_how_often_it_came_back(store: Bench) -> None:
    what = labelled("a")
    store.lease(what)
    store.requeue("1:1", counted="requeued")
    assert store.state()["{q}:deliveries"] == counts(message_of(what), b"0 0 1")
    store.cancel("a")

    assert store.acquire("2").messages == []
    assert "{q}:deliveries" not in store.state()


def test_a_message_without_a_label_is_not_found(store: Bench) -> None:
    store.push(b'{"id": "a"}')
    before = store.state()

    assert store.cancel("a") == ["u"]
    assert store.state() == before


def test_what_is_to_be_delivered_alone_is_dropped_too(store: Bench) -> None:
    store.make_ready(labelled("a"), labelled("b"))
    store.acquire("1", 1)
    store.pass_time()
    assert store.reclaim_expired(max_deliveries=1).quarantined == 1
    assert store.cancel("a") == ["m"]

    first, second = store.acquire("2"), store.acquire("3")

    assert (first.messages, first.alone, first.first_list) == ([], False, 1)
    assert bodies(second) == [message_of(labelled("b"))]
    assert {"{q}:deliveries", "{q}:quarantined", "{q}:ready_index"}.isdisjoint(store.state())


def test_what_stock_workers_took_is_not_said_to_be_cancelled(store: Bench) -> None:
    store.make_ready(labelled("a", unique="dk"), labelled("b"))
    assert len(store.client.rpop("q", 2) or []) == 2

    assert store.cancel("a", "b") == ["u", "u"]
    assert store.state() == REGISTERED


# -- running


def test_what_a_process_holds_is_left_alone(store: Bench) -> None:
    store.lease(labelled("a", unique="dk"))
    before = store.state()

    assert store.cancel("a") == ["r"]
    assert store.state() == before


# -- several messages with one id


def make_triplets(store: Bench) -> None:
    """One message runs, one is ready and two are scheduled."""
    store.lease(labelled("a", message_id="n1"))
    store.make_ready(labelled("a", message_id="n2"))
    store.put(labelled("a", message_id="n3"), labelled("a", FAR + 1, message_id="n4"))


def test_all_that_have_the_id_are_cancelled_but_for_those_that_run(store: Bench) -> None:
    make_triplets(store)

    assert store.cancel("a") == ["r"]
    assert store.acquire("2").messages == []
    found = store.state()
    assert found["{q}:leased_index"] == {b"a": b"n1 1 - tasks.t me"}
    assert {"{q}:due", "{q}:entries", "{q}:tasks", "{q}:ready_index"}.isdisjoint(found)

    store.ack("1:1")
    assert "{q}:duplicate_ids" not in store.state()


@pytest.mark.parametrize(
    ("name", "left"), [("a", [b"a\0n2", b"a\0n3"]), ("a\0n3", [b"a", b"a\0n2"])]
)
def test_a_name_stands_for_itself_alone(store: Bench, name: str, left: list[bytes]) -> None:
    for n in (1, 2, 3):
        store.put(labelled("a", FAR + n, message_id=f"n{n}"))

    assert store.cancel(Name(name)) == ["d"]
    assert store.client.zrange("{q}:due", 0, -1) == left
    assert store.cancel(Name(name)) == ["u"]

    assert store.cancel("a") == ["d"]
    assert store.state() == REGISTERED


def test_ids_that_begin_alike_are_different(store: Bench) -> None:
    for id in ("a", "ab", "a\1", "A"):
        store.put(labelled(id, message_id="first"), labelled(id, message_id="duplicate"))

    assert store.cancel("a") == ["d"]
    assert len(store.client.hkeys("{q}:entries")) == 6


# -- only with a certain due


def test_what_is_due_at_another_time_stays(store: Bench) -> None:
    store.put(labelled("scheduled"))
    store.make_ready(labelled("ready"), due_ms=7)
    before = store.state()

    assert store.cancel("scheduled", "ready", if_due=8) == ["c", "c"]
    assert store.state() == before
    assert store.cancel("scheduled", "ready", if_due=7) == ["c", "m"]
    assert store.cancel("scheduled", if_due=FAR) == ["d"]


def test_of_duplicate_ids_only_that_with_the_due_goes(store: Bench) -> None:
    store.put(labelled("a", FAR, message_id="n1"), labelled("a", FAR + 1, message_id="n2"))

    assert store.cancel("a", if_due=FAR + 1) == ["c"]
    assert store.client.hkeys("{q}:entries") == [b"a"]


# -- unique keys


def test_the_unique_key_is_free_again(store: Bench) -> None:
    store.put(labelled("scheduled", unique="dk1"))
    store.make_ready(labelled("ready", unique="dk2"))

    assert store.cancel("scheduled", "ready") == ["d", "m"]
    assert "{q}:unique" not in store.state()


def test_the_key_of_another_with_the_same_id_stays_taken(store: Bench) -> None:
    store.put(labelled("a", message_id="n1", unique="dk"))
    store.make_ready(labelled("a", message_id="n2"), labelled("a", message_id="n3", unique="dl"))
    assert store.state()["{q}:unique"] == {b"k": taken_by("a", "n1"), b"l": taken_by("a", "n3")}

    assert store.cancel(Name("a\0n3")) == ["m"]
    assert store.acquire().messages == [
        ("1:1", message_of(labelled("a", message_id="n2")), (0, 0, 0))
    ]
    store.ack("1:1")
    assert store.state()["{q}:unique"] == {b"k": taken_by("a", "n1")}


# -- repeats, and a full server


def test_a_repeat_gets_the_same_answer_whatever_was_sent_meanwhile(store: Bench) -> None:
    store.put(labelled("a"), labelled("b"))
    again = repeating(store, lambda: store.put(labelled("a", message_id="new")))

    assert again.cancel("a", "gone") == ["d", "u"]
    assert store.state() == as_scheduled(labelled("b"), labelled("a", message_id="new"))
