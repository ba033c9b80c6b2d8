"""range.lua: the schedule page by page, each entry once, whatever happens between two pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from celery_delayq.model.envelope import Due
from celery_delayq.model.script_values import (
    PAUSED_OFFSET_MS,
    EntryCondition,
    FoundPage,
    ListedEntry,
    Position,
)
from celery_delayq.store import scan
from celery_delayq.store.keys import Layout
from tests.lua.bench import FAR, QUEUE, Bench, Calls, entry, labelled

#: One call of each script here, and a reply to it.
SCRIPT_CALLS: Calls = {
    "scan/range": (
        lambda s: s.control.page("q", EntryCondition(), 10),
        [b"0", b"7", b"id", b"2 -1 1", b"id7", b""],
    ),
}

ALL_OF_IT = EntryCondition()

#: In the order of bytes, as Redis sorts.
HOSTILE = [
    "",
    "\1",
    " ",
    "%s",
    "A",
    "B\n",
    "a",
    "a b",
    "aa",
    "b",
    "nul",
    "Ä",
    "ä",
    "☃",
    "\U0001f600",
    "\U0010ffff",
]


def pages(
    store: Bench,
    where: EntryCondition = ALL_OF_IT,
    limit: int = 3,
    between: Callable[[FoundPage], object] = lambda _: None,
) -> Iterator[list[str]]:
    """Yield the names of each page."""
    after: Position | None = None
    began = store.now_us()
    while True:
        found = store.control.page(QUEUE, where, limit, after, began=began)
        yield [each.name for each in found.entries]
        if found.end is None:
            return
        assert found.end != after
        after = found.end
        between(found)


def names(store: Bench, where: EntryCondition = ALL_OF_IT, limit: int = 3) -> list[str]:
    return [name for page in pages(store, where, limit) for name in page]


@pytest.fixture
def _hundred(store: Bench) -> None:
    """A hundred entries, of three tasks and two priorities, with ten different dues."""
    store.put(
        *(
            labelled(f"e{n:02}", FAR + n // 10, task=f"t{n % 3}", priority=n % 2 * 3)
            for n in range(100)
        ),
    )


ALL = [f"e{n:02}" for n in range(100)]


def test_an_empty_queue_is_an_empty_page(store: Bench) -> None:
    assert store.control.page(QUEUE, EntryCondition(), 10) == FoundPage([], None)
    assert store.control.page(QUEUE, EntryCondition("t"), 10) == FoundPage([], None)


@pytest.mark.usefixtures("_hundred")
@pytest.mark.parametrize("limit", [1, 3, 7, 99, 100, 101, 1000])
def test_the_pages_together_are_all_in_order_of_due(store: Bench, limit: int) -> None:
    assert names(store, limit=limit) == ALL
    assert names(store, EntryCondition("t1"), limit) == ALL[1::3]


@pytest.mark.parametrize("limit", [1, 3, 10])
@pytest.mark.parametrize("task", [None, "tasks.t"])
def test_many_with_the_same_due_are_paged_by_name(
    store: Bench, limit: int, task: str | None
) -> None:
    store.put(*(labelled(id) for id in HOSTILE))
    store.put(*(labelled(id, message_id=f"duplicate{n}") for n, id in enumerate(HOSTILE)))

    expected = [*HOSTILE, *(f"{id}\0duplicate{n}" for n, id in enumerate(HOSTILE))]
    assert names(store, EntryCondition(task), limit) == sorted(expected, key=str.encode)


def test_names_that_are_no_text_are_paged_too(store: Bench) -> None:
    raw = [b"\x80", b"\xff", b"\xff\x00", b"a", b"\xc3"]
    store.client.zadd("{q}:due", dict.fromkeys(raw, 7))

    found = [name.encode(errors="surrogateescape") for name in names(store, limit=1)]
    assert found == sorted(raw)


def test_an_entry_comes_with_score_and_record_or_without(store: Bench) -> None:
    what = labelled("a")
    store.put(what)

    assert store.control.page(QUEUE, EntryCondition(), 5).entries == [
        ListedEntry("a", FAR, what.data)
    ]
    bare = store.control.page(QUEUE, EntryCondition("tasks.t"), 5, records=False).entries
    assert bare == [ListedEntry("a", FAR, b"")]


@pytest.mark.usefixtures("_hundred")
@pytest.mark.parametrize("task", [None, "t0"])
@pytest.mark.parametrize("which", ["last", "all", "next"])
def test_what_is_removed_between_pages_moves_nothing_else(
    store: Bench, task: str | None, which: str
) -> None:
    expected = ALL[::3] if task else ALL
    removed: list[str] = []

    def remove(found: FoundPage) -> None:
        here = [each.name for each in found.entries]
        end = expected.index(here[-1])
        gone = {"last": here[-1:], "all": here, "next": expected[end + 1 : end + 2]}[which]
        removed.extend(gone if which == "next" else ())
        store.control.cancel(QUEUE, Layout(), gone)

    found = [name for page in pages(store, EntryCondition(task), 3, remove) for name in page]

    assert found == [name for name in expected if name not in removed]


@pytest.mark.usefixtures("_hundred")
def test_what_is_added_between_pages_moves_nothing_else(store: Bench) -> None:
    numbers = iter(range(1000))

    def add(found: FoundPage) -> None:
        n = next(numbers)
        store.put(labelled(f"a{n}", FAR - 1), labelled(f"d{n}", FAR + 3), labelled(f"f{n}", FAR))

    found = [name for page in pages(store, limit=7, between=add) for name in page]

    assert [name for name in found if name in ALL] == ALL
    assert len(set(found)) == len(found)


# -- entries that are paused and due


@pytest.mark.usefixtures("_hundred")
@pytest.mark.parametrize("limit", [1, 7, 100])
def test_what_is_paused_due_has_its_place_by_due(store: Bench, limit: int) -> None:
    paused_due = ALL[1:60:3]
    store.pause_due(*paused_due, task="t1", due_ms=5)

    assert names(store, limit=limit) == paused_due + [n for n in ALL if n not in paused_due]
    assert names(store, EntryCondition("t1"), limit) == paused_due + ALL[61::3]
    [first, *_] = store.control.page(QUEUE, EntryCondition("t1"), 1).entries
    assert (first.due_ms, first.score) == (5, 10**15 + 5)


def test_what_is_paused_due_is_in_the_range_of_its_due(store: Bench) -> None:
    store.put(labelled("a"), labelled("b"), labelled("c", FAR + 5))
    store.pause_due("a", "b", due_ms=5)
    store.become_due("b", 9)  # moved manually
    store.promote()

    for task in (None, "tasks.t"):
        assert names(store, EntryCondition(task, 5, 5)) == ["a"]
        assert names(store, EntryCondition(task, 6)) == ["b", "c"]
        assert names(store, EntryCondition(task, None, 9)) == ["a", "b"]
        assert names(store, EntryCondition(task, 10, FAR + 4)) == []


@pytest.mark.usefixtures("_hundred")
@pytest.mark.parametrize("task", [None, "t1"])
def test_what_is_paused_or_resumed_between_pages_comes_once(store: Bench, task: str | None) -> None:
    waiting = ALL[1:60:3]
    store.pause_due(*waiting, task="t1", due_ms=5)
    turns = iter(range(1000))

    def turn(_: FoundPage) -> None:
        score = 5 if next(turns) % 2 == 0 else PAUSED_OFFSET_MS + 5
        store.client.zadd("{q}:due", dict.fromkeys(waiting, score))

    found = [name for page in pages(store, EntryCondition(task), 7, turn) for name in page]
    assert found == waiting + [n for n in (ALL[1::3] if task else ALL) if n not in waiting]


# -- filters


@pytest.mark.usefixtures("_hundred")
@pytest.mark.parametrize("limit", [1, 4, 1000])
@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (FAR + 2, None, ALL[20:]),
        (None, FAR + 2, ALL[:30]),
        (FAR + 2, FAR + 2, ALL[20:30]),
        (FAR + 3, FAR + 2, []),
        (0, FAR - 1, []),
        (-5, -1, []),
        (-(10**14), 253_402_300_799_999, ALL),
    ],
)
def test_a_range_of_dues_is_inclusive(
    store: Bench, low: int | None, high: int | None, expected: list[str], limit: int
) -> None:
    assert names(store, EntryCondition(None, low, high), limit) == expected
    by_task = [name for name in expected if int(name[1:]) % 3 == 0]
    assert names(store, EntryCondition("t0", low, high), limit) == by_task
    assert _count(store, EntryCondition(None, low, high)) == len(expected)
    assert _count(store, EntryCondition("t0", low, high)) == len(by_task)


@pytest.mark.usefixtures("_hundred")
@pytest.mark.parametrize("limit", [1, 4, 1000])
def test_one_priority_only(store: Bench, limit: int) -> None:
    assert names(store, EntryCondition(step=3), limit) == ALL[1::2]
    assert names(store, EntryCondition("t0", step=3), limit) == ALL[3::6]
    assert names(store, EntryCondition(step=9), limit) == []


def test_a_page_of_one_priority_ends_after_some_calls_that_find_none(
    store: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "MAX_LOOKED_ENTRIES", 5)
    for n in range(45):
        store.put(labelled(f"e{n:02}", FAR + n, priority=9 if n == 44 else 0))

    found = [*pages(store, EntryCondition(step=9), 2)]

    assert found == [[], [], ["e44"]]


def test_a_large_page_of_one_priority_does_not_hold_redis_up(store: Bench) -> None:
    for start in range(0, 5600, 400):
        store.put(*(labelled(f"e{n:04}", FAR) for n in range(start, start + 400)))
    store.put(labelled("last", FAR + 1, priority=9))

    *before, last = pages(store, EntryCondition(step=9), 1000)
    assert (before, last) == ([[]] * len(before), ["last"])


def test_a_task_whose_name_begins_like_another(store: Bench) -> None:
    for task in ("t", "t2", "t.x", "u t", ""):
        store.put(labelled(f"of {task}", task=task))

    for task in ("t", "t2", "t.x", "u t"):
        assert names(store, EntryCondition(task)) == [f"of {task}"]
    assert names(store, EntryCondition("u")) == []


# -- contradictory keys


def test_entries_that_cannot_be_read_are_there_too(store: Bench) -> None:
    store.client.zadd("{q}:due", {"no record": 1, "garbage": 2})
    store.client.hset("{q}:entries", "garbage", b"\xff")
    store.put(entry("a", FAR))

    found = store.control.page(QUEUE, EntryCondition(), 10).entries
    assert found[:2] == [ListedEntry("no record", 1, b""), ListedEntry("garbage", 2, b"\xff")]
    assert names(store, EntryCondition(step=0)) == ["a"]


def test_an_index_that_is_out_of_step_ends_all_the_same(store: Bench) -> None:
    store.put(labelled("a", FAR), labelled("b", FAR + 1), labelled("c", FAR + 2))
    store.client.zadd("{q}:due", {"b": 3})
    store.client.zrem("{q}:due", "c")

    assert names(store, EntryCondition("tasks.t"), 1) == ["a", "b", "c"]


def test_a_page_takes_what_has_moved_since_at_its_former_place(store: Bench) -> None:
    store.put(*(labelled(f"e{n}", FAR + n) for n in range(4)))
    began = store.now_us()
    first = store.control.page(QUEUE, EntryCondition(), 2, began=began)
    store.control.reschedule(QUEUE, [("e1", Due(FAR + 9), None), ("e3", Due(FAR - 9), None)])

    rest = store.control.page(QUEUE, EntryCondition(), 5, first.end, began=began).entries
    assert [(each.name, each.due_ms, each.listed_due_ms) for each in rest] == [
        ("e2", FAR + 2, FAR + 2),
        ("e3", FAR - 9, FAR + 3),
    ]
    # Without the begin of a reading, it comes at its present due.
    now = store.control.page(QUEUE, EntryCondition(), 5, first.end).entries
    assert [each.name for each in now] == ["e2", "e1"]


def test_infinite_scores_are_no_part_of_a_page(store: Bench) -> None:
    store.put(labelled("a", FAR), labelled("b", FAR + 1))
    store.client.zadd(f"{{{QUEUE}}}:due", {"late": "inf", "early": "-inf"})

    assert [*pages(store, limit=1)] == [["a"], ["b"]]


def _count(store: Bench, where: EntryCondition) -> int:
    return store.run_steps(store.control.count_steps(QUEUE, where))
