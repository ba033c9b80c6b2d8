"""give_back.lua and repair/forget_ready.lua: back to stock workers, as things are at that
moment."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from redis.exceptions import ResponseError

from celery_delayq.model.envelope import Due, Record
from celery_delayq.store.keys import Layout
from celery_delayq.store.repair_tracking import RepairTracking, Tracked
from celery_delayq.store.schedule import Store
from tests.lua.conftest import (
    FAR,
    LAYOUT,
    QUEUE,
    become_due,
    bodies,
    entry,
    fill,
    labelled,
    make_ready,
    message_of,
    put,
    read,
    release,
    repeating,
    reserve,
    state,
    taken_by,
)
from tests.lua.pausing import overdue, pause, promote
from tests.support.keyspace import snapshot

pytestmark = pytest.mark.usefixtures("watched")


# -- entries


def test_an_entry_is_given_back_as_another_message(store: Store) -> None:
    put(store, entry("a", FAR, priority=6), entry("b", FAR + 1))

    assert release(store, read(store, "a", b"with its ETA")) == "d"

    found = state(store)
    assert found["q\x06\x166"] == [b"with its ETA"]
    assert found["{q}:wake"] == [b""]
    assert found["{q}:due"] == {b"b": FAR + 1}
    assert found["delayq:next_due"] == {b"q": FAR + 1}
    assert list(found["{q}:entries"]) == [b"b"]
    assert found["{q}:tasks"] == {b"tasks.t\x00004000000000001\x00b": 0}


def test_several_go_in_their_order_and_the_others_stay(store: Store) -> None:
    put(store, *(entry(id, FAR + n) for n, id in enumerate("abcd")))
    some = [read(store, id, id.encode()) for id in "abd"]
    store.control.cancel(QUEUE, Layout(), ["b"])

    assert release(store, *some) == "dud"

    found = state(store)
    assert found["q"] == [b"d", b"a"]  # the first to run stands last
    assert found["{q}:due"] == {b"c": FAR + 2}


def test_a_priority_without_a_list_goes_to_the_first_one(store: Store) -> None:
    put(store, entry("a", FAR, priority=5))

    assert release(store, read(store, "a")) == "d"

    assert state(store)["q"] == [b"{}"]


def pause_due(store: Store) -> None:
    pause(store)
    become_due(store, "a")
    promote(store)


MOVES: dict[str, Callable[[Store], object]] = {
    "moved": lambda s: s.control.reschedule(QUEUE, [("a", Due(FAR + 5), None)]),
    "moved earlier": lambda s: s.control.reschedule(QUEUE, [("a", Due(FAR - 5), None)]),
    "replaced": lambda s: s.client.hset("{q}:entries", "a", Record(0, "x", "t", b"{}").pack()),
    "paused_due": pause_due,
}


@pytest.mark.parametrize("change", MOVES.values(), ids=MOVES)
def test_what_has_changed_since_it_was_read_stays(
    store: Store, change: Callable[[Store], object]
) -> None:
    put(store, labelled("a"))
    seen = read(store, "a")
    change(store)
    before = state(store)

    assert release(store, seen) == "c"
    assert state(store) == before
    assert release(store, read(store, "a")) == "d"
    assert "{q}:due" not in state(store)


def test_what_is_paused_due_goes_back_and_leaves_nothing(store: Store) -> None:
    overdue(store, "a")
    pause(store)
    promote(store)

    assert release(store, read(store, "a", b"at once")) == "d"

    assert state(store) == {
        "q": [b"at once"],
        "{q}:wake": [b""],
        "delayq:queues": {b"q": LAYOUT},
        "delayq:control": state(store)["delayq:control"],
    }


def test_a_repeat_gives_the_same_answer_and_pushes_nothing_more(store: Store) -> None:
    put(store, entry("a", FAR), entry("b", FAR))
    some = [read(store, "a"), read(store, "b")]
    store.control.reschedule(QUEUE, [("b", Due(FAR + 1), None)])

    def sent_meanwhile() -> None:
        put(store, entry("a", FAR, message_id="another"))

    assert release(repeating(store, sent_meanwhile), *some) == "dc"
    assert state(store)["q"] == [b"{}"]
    assert sorted(state(store)["{q}:due"]) == [b"a", b"b"]


def test_an_answer_is_not_kept_for_long(store: Store) -> None:
    put(store, entry("a", FAR))

    release(store, read(store, "a"), token="mine")

    assert 0 < store.client.ttl("{q}:answer:mine") <= 60


def test_a_full_server_lets_it_pass(store: Store) -> None:
    put(store, entry("a", FAR))
    seen = read(store, "a")
    fill(store)

    assert release(store, seen) == "d"


@pytest.mark.parametrize("key", ["q", "q\x06\x163", "{q}:ready_index", "{q}:paused_due"])
def test_a_key_of_another_type_is_an_error_before_anything_is_written(
    store: Store, key: str
) -> None:
    put(store, entry("a", FAR))
    seen = read(store, "a")
    store.client.set(key, "not ours")
    before = snapshot(store.client)

    with pytest.raises(ResponseError, match="WRONGTYPE"):
        release(store, seen)

    assert snapshot(store.client) == before


# -- what is ready


def forget(store: Store, *some: tuple[Tracked, bytes]) -> int:
    return RepairTracking(store).forget_ready(QUEUE, Layout(), some)


def waiting(store: Store) -> dict[bytes, Tracked]:
    return {each.name: each for each in RepairTracking(store).tracked(QUEUE, "waiting")}


def test_what_is_ready_stays_and_nothing_is_known_of_it(store: Store) -> None:
    one, two = labelled("a", message_id="n1", unique="dk"), labelled("a", message_id="n2")
    make_ready(store, one, two)
    before = state(store)

    assert forget(store, *((each, b"") for each in waiting(store).values())) == 0

    gone = {"{q}:ready_index", "{q}:unique", "{q}:duplicate_ids"}
    assert state(store) == {key: value for key, value in before.items() if key not in gone}


def test_of_what_was_cancelled_the_message_goes_too(store: Store) -> None:
    kept, gone = labelled("a"), labelled("b", unique="dk", priority=3)
    make_ready(store, kept, gone)
    store.control.cancel(QUEUE, Layout(), ["b"])

    assert forget(store, (waiting(store)[b"b"], message_of(gone))) == 1

    assert list(waiting(store)) == [b"a"]
    assert bodies(reserve(store)) == [message_of(kept)]


def test_what_was_taken_meanwhile_is_left_alone(store: Store) -> None:
    make_ready(store, labelled("a", unique="dk"))
    seen = waiting(store)[b"a"]
    reserve(store)
    before = state(store)

    assert forget(store, (seen, message_of(labelled("a", unique="dk")))) == 0

    assert state(store) == before


def test_keys_of_what_is_held_or_scheduled_stay(store: Store) -> None:
    make_ready(store, labelled("a", unique="da"))
    reserve(store)
    put(store, labelled("b", unique="sb"))
    make_ready(store, labelled("c", unique="dc"))

    assert forget(store, (waiting(store)[b"c"], b"")) == 0

    assert state(store)["{q}:unique"] == {b"a": taken_by("a"), b"b": taken_by("b")}


def test_forgetting_again_changes_nothing(store: Store) -> None:
    make_ready(store, labelled("a", unique="dk"))
    some = [(each, b"") for each in waiting(store).values()]
    forget(store, *some)
    before = state(store)

    assert forget(store, *some) == 0
    assert state(store) == before
