"""page.lua: dead letters in pages, in the order of their time of death."""

from __future__ import annotations

from tests.lua.bench import QUEUE, Bench, Calls
from tests.lua.dead_letters import seed, stored

#: One call of each script here, and a reply to it.
SCRIPT_CALLS: Calls = {
    "deadletters/page": (
        lambda s: list(s.dead_letters.pages("q", 1, 2, 10)),
        [b"0", b"2 -1 1", b"id5"],
    ),
}


def pages(store: Bench, low: int | None = None, high: int | None = None) -> list[list[str]]:
    one, other = (
        [
            [dead_letter.id for dead_letter in part]
            for part in store.dead_letters.pages(QUEUE, low, high, page=3, ahead=ahead)
        ]
        for ahead in (False, True)
    )
    assert one == other
    return one


def test_those_that_died_first_come_first(store: Bench) -> None:
    seed(store, "c", died_ms=30)
    seed(store, "a", died_ms=10)
    seed(store, "d", died_ms=40)
    seed(store, "b", died_ms=20)

    assert pages(store) == [["a", "b", "c"], ["d"]]
    assert pages(store, 20, 30) == [["b", "c"]]
    assert pages(store, 41, None) == []


def test_each_comes_once_also_when_many_died_at_one_moment(store: Bench) -> None:
    names = [f"{n:02}" for n in range(20)]
    for name in names:
        seed(store, name, died_ms=10)
    seed(store, "before", died_ms=9)
    seed(store, "after", died_ms=11)

    found = pages(store)

    assert [id for part in found for id in part] == ["before", *names, "after"]
    assert [len(part) for part in found] == [3] * 7 + [1]


def test_a_page_ends_after_a_megabyte(store: Bench) -> None:
    seed(store, *"abcde", died_ms=10, message=b"." * 1_000_000)

    assert pages(store) == [[id] for id in "abcde"]


def test_what_is_no_dead_letter_or_gone_holds_nothing_up(store: Bench) -> None:
    seed(store, *"abcde", died_ms=10)
    key = store.keys.queue(QUEUE)
    store.client.hdel(key.dead, "a", "b", "c")
    store.client.hset(key.dead, "d", b"\xff garbage")

    assert pages(store) == [["d", "e"]]


def test_what_dies_and_goes_meanwhile_is_there_or_not(store: Bench) -> None:
    seed(store, *"abcdef", died_ms=10)
    found = store.dead_letters.pages(QUEUE, page=2, ahead=True)

    first = [dead_letter.id for dead_letter in next(found)]
    store.dead_letters.delete(QUEUE, [("e", 14), ("f", 15)])
    seed(store, "g", died_ms=20)
    rest = [dead_letter.id for part in found for dead_letter in part]

    # The reader reads one page ahead.
    assert first == ["a", "b"]
    assert rest == ["c", "d", "g"]


def test_who_stops_in_the_middle_leaves_a_connection_that_works(store: Bench) -> None:
    seed(store, *"abcdef", died_ms=10)

    for _ in range(50):
        found = store.dead_letters.pages(QUEUE, page=2, ahead=True)
        assert [dead_letter.id for dead_letter in next(found)] == ["a", "b"]
        found.close()  # type: ignore[attr-defined]
        assert store.dead_letters.count(QUEUE) == 6


def test_reading_changes_nothing(store: Bench) -> None:
    seed(store, *"abc", died_ms=10)
    before = store.state()

    pages(store)

    assert store.state() == before


def test_a_dead_letter_without_an_id_is_one_like_all(store: Bench) -> None:
    for _ in range(2):  # as after a lost reply
        store.dead_letters.add(QUEUE, " ", "unreadable", b"a")
    store.dead_letters.add(QUEUE, "\n", "unreadable", b"b")
    store.dead_letters.restore(QUEUE, [("", 10, stored(b"c", 10))])

    found = [
        (dead_letter.id.partition("\0")[0], dead_letter.message)
        for dead_letter in store.dead_letters.all(QUEUE)
    ]

    assert found == [("unnamed", b"c"), ("unnamed", b"a"), ("unnamed", b"b")]
