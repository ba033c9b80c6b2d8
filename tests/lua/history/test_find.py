"""history/find.lua: the runs of one task among the newest ones."""

from __future__ import annotations

import pytest

from celery_delayq.model.history import beginning_of
from celery_delayq.store import history
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.lua.bench import Bench, Calls, bench
from tests.support.runs import finished

#: One call of each script here, and a reply to it.
SCRIPT_CALLS: Calls = {
    "history/find": (lambda s: s.history.newest_of(b"1 a ", 1, 10), [0, b""]),
}

#: Two tasks with ids of which one begins like the other.
IDS = ["a", "b", "a", "aa", "a", "b"]


@pytest.fixture
def store(delayq_redis: RedisUnderTest) -> Bench:
    store = bench(delayq_redis, history=1000)
    store.history.add("me", 1, 1000, [finished(id, n) for n, id in enumerate(IDS)])
    return store


def found(store: Bench, id: str, count: int, most: int | None = None) -> tuple[list[int], int]:
    """Return the places of the found runs in :data:`IDS`, and how many runs were searched."""
    runs, number = store.history.newest_of(beginning_of(id), count, most)
    lines = [line for _, line in store.history.read("0", "+", 1000)]
    return [lines.index(line) for _, line in runs], number


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_the_newest_ones_come_first(
    store: Bench, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "SEARCH_RUNS", size)

    assert found(store, "a", 10) == ([4, 2, 0], 6)
    assert found(store, "a", 2)[0] == [4, 2]
    assert found(store, "none", 1) == ([], 6)
    assert found(store, "a", 10, most=4) == ([4, 2], 4)


def test_the_search_ends_with_enough_runs(store: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "SEARCH_RUNS", 2)

    assert found(store, "a", 1) == ([4], 2)


def test_entries_of_other_programs_are_passed_over(store: Bench) -> None:
    store.client.xadd("delayq:history", {"other": finished("b", 9)})

    assert found(store, "b", 1) == ([5], 7)


def test_an_empty_history_has_no_run(store: Bench) -> None:
    store.client.flushdb()

    assert found(store, "a", 1) == ([], 0)
