"""restore.lua: dead letters come back unchanged, from an archive or an export."""

from __future__ import annotations

import hashlib

from tests.lua.bench import QUEUE, REGISTERED, Bench, Calls, any_bytes, repeating
from tests.lua.dead_letters import DETAILS, DIED, as_dead, stored

#: One call of each script here, and a reply to it.
SCRIPT_CALLS: Calls = {
    "deadletters/restore": (
        lambda s: s.dead_letters.restore("q", [("id", 5, b"1 5 0 why\n{}")]),
        b"d",
    ),
}


def test_dead_letters_are_kept_with_the_time_of_their_death(store: Bench) -> None:
    dead_letters = {"a": stored(b"{}", DIED), "b": stored(b"{}", DIED + 5, details=DETAILS)}

    told = store.dead_letters.restore(
        QUEUE, [("a", DIED, dead_letters["a"]), ("b", DIED + 5, dead_letters["b"])]
    )

    assert told == ["d", "d"]
    assert store.state() == REGISTERED | as_dead(dead_letters)


@any_bytes
def test_they_are_kept_byte_for_byte(store: Bench, message: bytes) -> None:
    data = stored(message, details=DETAILS)

    store.dead_letters.restore(QUEUE, [("a", DIED, data)])

    [dead_letter] = store.dead_letters.all(QUEUE)
    assert (dead_letter.message, dead_letter.details, dead_letter.data) == (message, DETAILS, data)


def test_what_is_there_already_is_reported(store: Bench) -> None:
    data = stored(b"{}")
    store.dead_letters.restore(QUEUE, [("a", DIED, data)])
    before = store.state()

    assert store.dead_letters.restore(QUEUE, [("a", DIED, data), ("b", DIED, data)]) == ["k", "d"]
    assert store.dead_letters.restore(QUEUE, [("a", DIED, data), ("b", DIED, data)]) == ["k", "k"]
    assert store.state().keys() == before.keys()


def test_another_dead_letter_with_that_id_is_kept_beside_it(store: Bench) -> None:
    there, other = stored(b"there"), stored(b"other", DIED - 9)
    store.dead_letters.restore(QUEUE, [("a", DIED, there)])

    assert store.dead_letters.restore(QUEUE, [("a", DIED - 9, other)]) == ["d"]
    assert store.dead_letters.restore(QUEUE, [("a", DIED - 9, other)]) == ["k"]

    digest = hashlib.sha1(other, usedforsecurity=False).hexdigest()
    assert store.state() == REGISTERED | as_dead({"a": there, f"a\0{digest}": other})


def test_it_is_not_kept_twice_when_the_other_one_has_gone(store: Bench) -> None:
    there, other = stored(b"there"), stored(b"other", DIED - 9)
    store.dead_letters.restore(QUEUE, [("a", DIED, there), ("a", DIED - 9, other)])
    store.dead_letters.delete(QUEUE, [("a", DIED)])
    before = store.state()

    assert store.dead_letters.restore(QUEUE, [("a", DIED - 9, other)]) == ["k"]
    assert store.state() == before


def test_what_has_lost_its_place_by_time_gets_it_back(store: Bench) -> None:
    data = stored(b"{}")
    store.client.hset("{q}:dead", "a", data)

    assert store.dead_letters.restore(QUEUE, [("a", DIED, data)]) == ["k"]
    assert store.state() == REGISTERED | as_dead({"a": data})


def test_a_layout_that_is_known_stays(store: Bench) -> None:
    store.client.hset("delayq:queues", "q", "its own")

    store.dead_letters.restore(QUEUE, [("a", DIED, stored(b"{}"))])

    assert store.registry() == {"q": b"its own"}


def test_no_dead_letters_are_no_call(store: Bench) -> None:
    assert store.dead_letters.restore(QUEUE, []) == []
    assert store.state() == {}


def test_a_repeat_keeps_one_of_each_and_gets_the_same_answer(store: Bench) -> None:
    dead_letters = [("a", DIED, stored(b"{}")), ("a", DIED + 1, stored(b"other", DIED + 1))]

    assert repeating(store).dead_letters.restore(QUEUE, dead_letters) == ["d", "d"]
    assert len(list(store.dead_letters.all(QUEUE))) == 2
