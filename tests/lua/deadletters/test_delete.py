"""delete.lua: dead letters are deleted."""

from __future__ import annotations

import pytest

from celery_delayq.store.dead_letters import digest_of, read_codes
from tests.lua.bench import QUEUE, REGISTERED, Bench, Calls, repeating
from tests.lua.dead_letters import DETAILS, DIED, dead, dead_letters_left, seed

#: One call of each script here, and a reply to it.
SCRIPT_CALLS: Calls = {
    "deadletters/delete": (lambda s: s.dead_letters.delete("q", [("id", 5)]), b"d"),
}


def test_dead_letters_are_forgotten_and_others_stay(store: Bench) -> None:
    seed(store, "a", "b", "c")

    assert store.dead_letters.delete(QUEUE, [("a", DIED), ("c", DIED + 2)]) == ["d", "d"]
    assert store.state() == REGISTERED | dead("b", died_ms=DIED + 1)


def test_the_last_one_leaves_nothing(store: Bench) -> None:
    seed(store, "a", details=DETAILS)

    assert store.dead_letters.delete(QUEUE, [("a", DIED)]) == ["d"]
    assert store.state() == REGISTERED


def test_another_dead_letter_with_that_id_stays(store: Bench) -> None:
    seed(store, "a", died_ms=DIED + 1)
    before = store.state()

    assert store.dead_letters.delete(QUEUE, [("a", DIED), ("never", DIED)]) == ["c", "u"]
    assert store.state() == before


def test_what_does_not_say_when_it_died_is_meant_all_the_same(store: Bench) -> None:
    seed(store, "a")
    store.client.hset("{q}:dead", "a", b"\xff not what we write")

    assert store.dead_letters.delete(QUEUE, [("a", 0)]) == ["d"]
    assert store.state() == REGISTERED


@pytest.mark.parametrize("more", [b"", b"longer"], ids=["as long", "longer"])
def test_with_digests_one_with_another_message_than_was_read_stays(
    store: Bench, more: bytes
) -> None:
    seed(store, "a", "b")
    digests = [digest_of(store.client.hget("{q}:dead", id)) for id in "ab"]
    store.client.hset("{q}:dead", "a", store.client.hget("{q}:dead", "b") + more)

    call = store.dead_letters.delete_call(
        QUEUE, [("a", DIED), ("b", DIED + 1)], "t", digests=digests
    )

    assert read_codes(store.run(call)) == ["c", "d"]
    assert dead_letters_left(store) == {"a"}


def test_no_dead_letters_are_no_call(store: Bench) -> None:
    assert store.dead_letters.delete(QUEUE, []) == []


def test_a_repeat_gives_the_same_answer_and_takes_no_other(store: Bench) -> None:
    seed(store, "a")

    again = repeating(store, lambda: seed(store, "a", died_ms=DIED + 1))

    assert again.dead_letters.delete(QUEUE, [("a", DIED)]) == ["d"]
    assert dead_letters_left(store) == {"a"}
    assert repeating(store).dead_letters.delete(QUEUE, [("a", DIED + 1)]) == ["d"]
    assert store.state() == REGISTERED
