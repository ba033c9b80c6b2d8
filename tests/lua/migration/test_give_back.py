"""give_back.lua and repair/forget_ready.lua: tasks go back to stock workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_delayq.model.envelope import Due, Record
from celery_delayq.store.keys import Layout
from celery_delayq.store.repair import StockMessage
from celery_delayq.store.repair_tracking import Tracked
from celery_delayq.store.scripting.calls import Call
from tests.lua.bench import (
    DATA,
    FAR,
    LAYOUT,
    QUEUE,
    Bench,
    Calls,
    bodies,
    entry,
    labelled,
    message_of,
    repeating,
    taken_by,
)

#: One call of each script here, and a reply to it.
SCRIPT_CALLS: Calls = {
    "migration/give_back": (
        lambda s: s.repair.give_back("q", Layout(), [StockMessage("id", 5.0, DATA, b"{}")]),
        b"d",
    ),
    "repair/forget_ready": (
        lambda s: s.repair_tracking.forget_ready("q", Layout(), [(Tracked(b"id", b"value"), b"")]),
        1,
    ),
}

# -- entries


def test_an_entry_is_given_back_as_another_message(store: Bench) -> None:
    store.put(entry("a", FAR, priority=6), entry("b", FAR + 1))

    assert store.release(store.read("a", b"with its ETA")) == "d"

    found = store.state()
    assert found["q\x06\x166"] == [b"with its ETA"]
    assert found["{q}:wake"] == [b""]
    assert found["{q}:due"] == {b"b": FAR + 1}
    assert found["delayq:next_due"] == {b"q": FAR + 1}
    assert list(found["{q}:entries"]) == [b"b"]
    assert found["{q}:tasks"] == {b"tasks.t\x00004000000000001\x00b": 0}


def test_several_go_in_their_order_and_the_others_stay(store: Bench) -> None:
    store.put(*(entry(id, FAR + n) for n, id in enumerate("abcd")))
    some = [store.read(id, id.encode()) for id in "abd"]
    store.cancel("b")

    assert store.release(*some) == "dud"

    found = store.state()
    assert found["q"] == [b"d", b"a"]  # the first to run is the last one
    assert found["{q}:due"] == {b"c": FAR + 2}


def test_a_priority_without_a_list_goes_to_the_first_one(store: Bench) -> None:
    store.put(entry("a", FAR, priority=5))

    assert store.release(store.read("a")) == "d"

    assert store.state()["q"] == [b"{}"]


MOVES: dict[str, Callable[[Bench], object]] = {
    "moved": lambda s: s.control.reschedule(QUEUE, [("a", Due(FAR + 5), None)]),
    "moved earlier": lambda s: s.control.reschedule(QUEUE, [("a", Due(FAR - 5), None)]),
    "replaced": lambda s: s.client.hset("{q}:entries", "a", Record(0, "x", "t", b"{}").pack()),
    "paused_due": lambda s: s.pause_due("a"),
}


@pytest.mark.parametrize("change", MOVES.values(), ids=MOVES)
def test_what_has_changed_since_it_was_read_stays(
    store: Bench, change: Callable[[Bench], object]
) -> None:
    store.put(labelled("a"))
    seen = store.read("a")
    change(store)
    before = store.state()

    assert store.release(seen) == "c"
    assert store.state() == before
    assert store.release(store.read("a")) == "d"
    assert "{q}:due" not in store.state()


def test_what_is_paused_due_goes_back_and_leaves_nothing(store: Bench) -> None:
    store.overdue("a")
    store.pause()
    store.promote()

    assert store.release(store.read("a", b"at once")) == "d"

    assert store.state() == {
        "q": [b"at once"],
        "{q}:wake": [b""],
        "delayq:queues": {b"q": LAYOUT},
        "delayq:control": store.state()["delayq:control"],
    }


def test_a_repeat_gives_the_same_answer_and_pushes_nothing_more(store: Bench) -> None:
    store.put(entry("a", FAR), entry("b", FAR))
    some = [store.read("a"), store.read("b")]
    store.control.reschedule(QUEUE, [("b", Due(FAR + 1), None)])

    def sent_meanwhile() -> None:
        store.put(entry("a", FAR, message_id="another"))

    assert repeating(store, sent_meanwhile).release(*some) == "dc"
    assert store.state()["q"] == [b"{}"]
    assert sorted(store.state()["{q}:due"]) == [b"a", b"b"]


# -- ready messages


def forget(store: Bench, *some: tuple[Tracked, bytes]) -> int:
    return store.repair_tracking.forget_ready(QUEUE, Layout(), some)


def waiting(store: Bench) -> dict[bytes, Tracked]:
    return {each.name: each for each in store.repair_tracking.tracked(QUEUE, "waiting")}


def test_what_is_ready_stays_and_nothing_is_known_of_it(store: Bench) -> None:
    one, two = labelled("a", message_id="n1", unique="dk"), labelled("a", message_id="n2")
    store.make_ready(one, two)
    before = store.state()

    assert forget(store, *((each, b"") for each in waiting(store).values())) == 0

    gone = {"{q}:ready_index", "{q}:unique", "{q}:duplicate_ids"}
    assert store.state() == {key: value for key, value in before.items() if key not in gone}


def test_of_what_was_cancelled_the_message_goes_too(store: Bench) -> None:
    kept, gone = labelled("a"), labelled("b", unique="dk", priority=3)
    store.make_ready(kept, gone)
    store.cancel("b")

    assert forget(store, (waiting(store)[b"b"], message_of(gone))) == 1

    assert list(waiting(store)) == [b"a"]
    assert bodies(store.acquire()) == [message_of(kept)]


def test_what_was_taken_meanwhile_is_left_alone(store: Bench) -> None:
    store.make_ready(labelled("a", unique="dk"))
    seen = waiting(store)[b"a"]
    store.acquire()
    before = store.state()

    assert forget(store, (seen, message_of(labelled("a", unique="dk")))) == 0

    assert store.state() == before


def test_keys_of_what_is_held_or_scheduled_stay(store: Bench) -> None:
    store.lease(labelled("a", unique="da"))
    store.put(labelled("b", unique="sb"))
    store.make_ready(labelled("c", unique="dc"))

    assert forget(store, (waiting(store)[b"c"], b"")) == 0

    assert store.state()["{q}:unique"] == {b"a": taken_by("a"), b"b": taken_by("b")}


def test_forgetting_again_changes_nothing(store: Bench) -> None:
    store.make_ready(labelled("a", unique="dk"))
    some = [(each, b"") for each in waiting(store).values()]
    forget(store, *some)
    before = store.state()

    assert forget(store, *some) == 0
    assert store.state() == before


# -- many cancelled messages


def turn(store: Bench, *args: Any) -> Any:
    """Rotate a part of the list; return the number of messages left."""
    key = store.keys.queue(QUEUE)
    keys = [*key.state, "q", key.turning("q")]
    return store.run(Call("repair/drop_cancelled", keys, [*args]))


def drop(store: Bench) -> None:
    tracking = store.repair_tracking
    cancelled = {
        each.message: each
        for each in tracking.tracked(QUEUE, "waiting")
        if each.value.startswith(b"!")
    }
    tracking.drop_cancelled(QUEUE, "q", cancelled)


def test_a_list_is_turned_around_once_without_cancelled_messages(store: Bench) -> None:
    sent = [labelled(f"id-{n}") for n in range(250)]
    store.make_ready(*sent)
    kept = [each for n, each in enumerate(sent) if n % 3]
    store.cancel(*(f"id-{n}" for n in range(0, 250, 3)))

    drop(store)

    assert store.state()["q"] == [message_of(each) for each in reversed(kept)]
    assert len(waiting(store)) == len(kept)
    assert "{q}:turning:q" not in store.state()


def test_an_interrupted_turn_is_finished_and_a_repeat_changes_nothing(store: Bench) -> None:
    sent = [labelled(f"id-{n}") for n in range(5)]
    store.make_ready(*sent)
    store.cancel("id-1")

    assert turn(store, "", 0) == 5
    args = [5, 3, 2, *waiting(store)[b"id-1"], message_of(sent[1])]
    assert turn(store, *args) == 2
    before = store.state()
    assert turn(store, *args) == 2
    assert store.state() == before
    assert store.repair_tracking.is_turning(QUEUE, "q")

    drop(store)

    left = [message_of(each) for n, each in enumerate(sent) if n != 1]
    assert store.state()["q"] == left[::-1]
    assert not store.repair_tracking.is_turning(QUEUE, "q")


def test_a_list_that_others_take_from_is_read_again(store: Bench) -> None:
    sent = [labelled(f"id-{n}") for n in range(3)]
    store.make_ready(*sent)
    store.cancel("id-1")
    assert turn(store, "", 0) == 3
    store.client.rpop("q")

    assert turn(store, 3, 3, 2, *waiting(store)[b"id-1"], message_of(sent[1])) == 2
    drop(store)

    assert message_of(sent[1]) not in store.state()["q"]
