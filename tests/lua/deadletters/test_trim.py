"""trim.lua: dead letters beyond the longest age, and beyond the limit."""

from __future__ import annotations

from tests.lua.bench import QUEUE, Bench, Calls, repeating
from tests.lua.dead_letters import dead_letters_left, seed

#: One call of each script here, and a reply to it.
SCRIPT_CALLS: Calls = {
    "deadletters/trim": (lambda s: s.dead_letters.trim("q", 60.0, 10, 100), [0, 1]),
}

HOUR = 3600.0


def seed_by_age(store: Bench, **seconds_ago: float) -> None:
    now = store.now_ms()
    for id, ago in seconds_ago.items():
        seed(store, id, died_ms=now - int(ago * 1000))


def test_those_that_died_too_long_ago_are_forgotten(store: Bench) -> None:
    seed_by_age(store, oldest=3 * HOUR, older=HOUR + 1, newer=HOUR - 60, new=0)

    assert store.dead_letters.trim(QUEUE, HOUR, 0, 100) == (2, 0)
    assert dead_letters_left(store) == {"newer", "new"}


def test_of_too_many_dead_letters_the_oldest_go_first(store: Bench) -> None:
    seed_by_age(store, new=0, oldest=30, older=20, newer=10)

    assert store.dead_letters.trim(QUEUE, 0, 2, 100) == (0, 2)
    assert dead_letters_left(store) == {"newer", "new"}


def test_age_goes_before_number(store: Bench) -> None:
    seed_by_age(store, a=3 * HOUR, b=2 * HOUR, c=3, d=2, e=1)

    assert store.dead_letters.trim(QUEUE, HOUR, 2, 100) == (2, 1)
    assert dead_letters_left(store) == {"d", "e"}


def test_without_limits_all_stay(store: Bench) -> None:
    seed(store, *"abc", died_ms=1)
    before = store.state()

    assert store.dead_letters.trim(QUEUE, 0, 0, 100) == (0, 0)
    assert store.state() == before


def test_within_the_limits_all_stay(store: Bench) -> None:
    seed_by_age(store, a=10, b=5)
    before = store.state()

    assert store.dead_letters.trim(QUEUE, HOUR, 2, 100) == (0, 0)
    assert store.state() == before


def test_so_many_are_forgotten_at_once_and_the_next_call_goes_on(store: Bench) -> None:
    now = store.now_ms()
    seed(store, *(f"old {n}" for n in range(5)), died_ms=1000)
    seed(store, *(f"new {n}" for n in range(5)), died_ms=now - 10_000)

    told = [store.dead_letters.trim(QUEUE, HOUR, 2, 3) for _ in range(5)]

    assert told == [(3, 0), (2, 1), (0, 2), (0, 0), (0, 0)]
    assert dead_letters_left(store) == {"new 3", "new 4"}


def test_the_whole_of_a_batch_is_one_call(store: Bench) -> None:
    count = 2000
    with store.client.pipeline() as pipe:
        for n in range(count):
            pipe.hset("{q}:dead", f"e{n}", b"1 5 0 x\n{}")
            pipe.zadd("{q}:dead_at", {f"e{n}": 5})
        pipe.execute()

    assert store.dead_letters.trim(QUEUE, HOUR, 0, count) == (count, 0)
    assert store.state() == {}


def test_nothing_there_is_nothing_to_forget(store: Bench) -> None:
    assert store.dead_letters.trim(QUEUE, HOUR, 1, 100) == (0, 0)
    assert store.state() == {}


def test_a_dead_letter_without_content_leaves_the_index_too(store: Bench) -> None:
    seed(store, "a", died_ms=1)
    store.client.zadd("{q}:dead_at", {"not there": 2})

    assert store.dead_letters.trim(QUEUE, HOUR, 0, 100) == (2, 0)
    assert dead_letters_left(store) == set()


def test_a_repeat_goes_on(store: Bench) -> None:
    seed(store, *"abcd", died_ms=1000)

    assert repeating(store).dead_letters.trim(QUEUE, HOUR, 0, 2) == (2, 0)
    assert dead_letters_left(store) == set()
