"""reschedule.lua: scheduled entries get another due, and change in no other way."""

from __future__ import annotations

import pytest

from celery_delayq.model.envelope import Due, Entry
from celery_delayq.model.script_values import Name, StatusCode
from tests.lua.bench import (
    FAR,
    QUEUE,
    Bench,
    Calls,
    as_scheduled,
    entry,
    labelled,
    repeating,
    taken_by,
)

#: One call of each script here, and a reply to it.
SCRIPT_CALLS: Calls = {
    "control/reschedule": (lambda s: s.control.reschedule("q", [("id", Due(5), None)]), b"d"),
}

LATER = Due(FAR + 100)


def move(store: Bench, id: str, due: Due = LATER, if_due: int | None = None) -> StatusCode:
    [code] = store.control.reschedule(QUEUE, [(id, due, if_due)])
    return code


@pytest.mark.parametrize("what", [labelled("a"), entry("a", FAR)], ids=["labelled", "unlabelled"])
def test_an_entry_has_a_new_place_everywhere(store: Bench, what: Entry) -> None:
    store.put(what)

    assert move(store, "a", Due(FAR - 5)) == "d"
    assert store.state() == as_scheduled(what._replace(due=Due(FAR - 5)))


def test_where_it_is_due_later_the_next_due_may_be_early_once(store: Bench) -> None:
    store.put(labelled("a"))

    assert move(store, "a") == "d"
    moved = as_scheduled(labelled("a", FAR + 100))
    assert store.state() == moved | {"delayq:next_due": {b"q": FAR}}

    store.promote()
    assert store.state() == moved


def test_an_earlier_due_wakes_the_dispatchers(store: Bench) -> None:
    store.put(labelled("a"))
    with store.wakeups() as heard:
        move(store, "a", Due(60_000, relative=True))

    [(wait, queue)] = heard
    assert 59_000_000 < wait <= 60_001_000
    assert queue == "q"
    score = store.client.zscore("{q}:due", "a")
    assert store.client.zscore("delayq:next_due", "q") == score


@pytest.mark.parametrize("due", [Due(1), Due(-5), Due(0, relative=True), Due(-9, relative=True)])
def test_the_past_is_refused(store: Bench, due: Due) -> None:
    store.put(labelled("a"))
    before = store.state()

    assert move(store, "a", due) == "p"
    assert store.state() == before


def test_what_has_left_the_schedule_is_reported_and_left_alone(store: Bench) -> None:
    store.lease(labelled("running"))
    store.make_ready(labelled("ready"))
    before = store.state()

    moves = [("running", LATER, None), ("ready", LATER, 5), ("never was", LATER, None)]
    assert store.control.reschedule(QUEUE, moves) == ["r", "w", "u"]
    assert store.state() == before


def test_what_was_cancelled_is_unknown(store: Bench) -> None:
    store.put(labelled("a"))
    store.make_ready(labelled("b"))
    store.cancel("a", "b")

    assert move(store, "a") == move(store, "b") == "u"


def test_only_what_is_due_then_is_moved(store: Bench) -> None:
    store.put(labelled("a"))
    before = store.state()

    assert move(store, "a", if_due=FAR + 1) == "c"
    assert store.state() == before
    assert move(store, "a", Due(FAR - 1), if_due=FAR) == "d"
    assert move(store, "a", Due(FAR - 2), if_due=FAR) == "c"
    assert store.state() == as_scheduled(labelled("a", FAR - 1))


def test_what_is_paused_due_goes_back_to_where_it_waits_for_a_time(store: Bench) -> None:
    store.put(labelled("a"))
    store.pause_due("a", due_ms=7)

    assert move(store, "a", if_due=6) == "c"
    assert move(store, "a", Due(FAR), if_due=7) == "d"
    found = store.state()
    assert found.pop("delayq:control")
    assert found == as_scheduled(labelled("a"))


def test_all_that_have_the_id_are_moved_or_a_name_alone(store: Bench) -> None:
    one, two = labelled("a", FAR, message_id="n1"), labelled("a", FAR + 9, message_id="n2")
    store.put(one, two)

    assert move(store, Name("a\0n2"), Due(FAR + 5)) == "d"
    assert store.state() == as_scheduled(one, **{"a\0n2": two._replace(due=Due(FAR + 5))}) | {
        "{q}:duplicate_ids": {b"a\0n2": 0}
    }
    assert move(store, Name("a"), Due(FAR - 1)) == "d"
    assert store.client.zscore("{q}:due", "a\0n2") == FAR + 5
    assert move(store, "a", Due(FAR - 3)) == "d"
    assert store.state() == as_scheduled(
        one._replace(due=Due(FAR - 3)), **{"a\0n2": two._replace(due=Due(FAR - 3))}
    ) | {"{q}:duplicate_ids": {b"a\0n2": 0}}


def test_an_unreadable_record_is_moved_too(store: Bench) -> None:
    store.client.zadd("{q}:due", {"a": FAR})
    store.client.hset("{q}:entries", "a", b"\xff no record")

    assert move(store, "a", Due(FAR + 1)) == "d"
    assert store.client.zscore("{q}:due", "a") == FAR + 1


def test_its_unique_key_stays_taken(store: Bench) -> None:
    store.put(labelled("a", unique="sk"))

    move(store, "a")
    assert store.state()["{q}:unique"] == {b"k": taken_by("a")}


def test_a_repeat_gets_the_same_answer_and_does_not_move_what_others_have_moved(
    store: Bench,
) -> None:
    store.put(labelled("a"))
    again = repeating(store, lambda: move(store, "a", Due(FAR - 9)))

    assert move(again, "a", Due(FAR - 1), if_due=FAR) == "d"
    assert store.state() == as_scheduled(labelled("a", FAR - 9))
