"""history/find.lua: the runs of one task, by the index of the history."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from celery_delayq.model.history import id_field
from celery_delayq.store import history
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.lua.bench import Bench, Calls, bench
from tests.support.runs import finished

#: One call of each script here, and a reply to it.
SCRIPT_CALLS: Calls = {"history/find": (lambda s: s.history.newest_of(b"a", 1), [0])}

#: Runs of tasks with ids of which some begin like others, or are spelled in another way.
IDS = ["a", "b", "a", "aa", "a", "b", "an id", "ü", ""]

INDEX, INDEX_BEFORE = "delayq:history_index", "delayq:history_index_before"


@pytest.fixture
def store(delayq_redis: RedisUnderTest) -> Bench:
    store = bench(delayq_redis, history=1000)
    add(store, IDS, size=1000)
    return store


def add(store: Bench, ids: Iterable[str], size: int, call: int = 1) -> None:
    """Add a run of each task to a history of a size."""
    store.history.add("me", call, size, [finished(id, n) for n, id in enumerate(ids)])


def found(store: Bench, id: str, count: int = 1000) -> list[int]:
    """Return the places of the found runs among all runs."""
    offsets = [offset for offset, _ in store.history.read("0", "+", 1000)]
    return [offsets.index(offset) for offset, _ in store.history.newest_of(id_field(id), count)]


@pytest.mark.parametrize("looked", [1, 2, 5, 1000])
@pytest.mark.parametrize("wanted", [1, 2, 1000])
def test_the_newest_ones_come_first(
    store: Bench, looked: int, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "LOOKED_RUNS", looked)
    monkeypatch.setattr(history, "FOUND_RUNS", wanted)

    for id in IDS:
        assert found(store, id) == [n for n, each in enumerate(IDS) if each == id][::-1]
    assert found(store, "a", 2) == [4, 2]
    assert found(store, "none") == []


def test_all_runs_of_a_trimmed_history_are_found(store: Bench) -> None:
    for call in range(2, 12):
        add(store, (f"{call} {n}" for n in range(100)), 200, call)

        lines = [line for _, line in store.history.read("0", "+", 1000)]
        for id in IDS:
            its = b"1 %b " % id_field(id)
            assert len(found(store, id)) == sum(line.startswith(its) for line in lines)
        for before in range(2, call + 1):
            line = finished(f"{before} 7", 7)
            assert found(store, f"{before} 7") == ([lines.index(line)] if line in lines else [])
    sizes = [store.client.strlen(key) // 32 for key in (INDEX, INDEX_BEFORE)]
    assert sizes[0] < 300 <= sizes[1] < 400


def test_runs_of_another_task_with_the_same_mark_are_left_out(store: Bench) -> None:
    index = store.client.get(INDEX)
    one, other = index[:10], index[32:42]
    store.client.set(INDEX, index.replace(other, one))

    assert found(store, "a") == [4, 2, 0]
    assert found(store, "b") == []


@pytest.mark.parametrize("offset", [b"", b"none", b"0-0", b"9" * 22, b"9" * 21 + b"-1"])
@pytest.mark.parametrize("more", [b"", b"x" * 31])
def test_what_other_programs_wrote_is_passed_over(store: Bench, offset: bytes, more: bytes) -> None:
    store.client.xadd("delayq:history", {"other": finished("b", 9)})
    mark = store.client.get(INDEX)[:10]
    store.client.set(INDEX_BEFORE, b"%b%-22b%b" % (mark, offset, more))

    assert found(store, "a") == [4, 2, 0]
    assert found(store, "none") == []


def test_an_empty_history_has_no_run(store: Bench) -> None:
    store.client.flushdb()

    assert found(store, "a") == []
