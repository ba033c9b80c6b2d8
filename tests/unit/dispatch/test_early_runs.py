"""Runs whose messages were acknowledged early go to the history by themselves."""

from __future__ import annotations

import math
from typing import Any

import pytest

from celery_delayq.dispatch.early_runs import MAX_RUNS, EarlyRuns


class Writer:
    """Stands for a store; the next call fails as often as *fails* says."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, list[bytes]]] = []
        self.fails = 0
        self.history = self

    def add(self, worker_id: str, number: int, most: int, runs: list[bytes]) -> int:
        assert (worker_id, most) == ("me", 10)
        self.calls.append((number, list(runs)))
        if self.fails:
            self.fails -= 1
            raise ConnectionError
        return len(runs)


@pytest.fixture
def runs() -> EarlyRuns:
    return EarlyRuns("me", 10, lambda: None)


@pytest.fixture
def writer() -> Any:
    return Writer()


def test_the_first_that_waits_wakes_who_sends_them(writer: Any) -> None:
    begun: list[int] = []
    runs = EarlyRuns("me", 10, lambda: begun.append(1))
    assert not runs
    assert runs.due == math.inf

    runs.add(b"a")
    runs.add(b"b")
    assert len(begun) == 1
    assert runs
    assert runs.due < math.inf

    runs.flush(writer)
    assert not runs
    assert runs.due == math.inf
    runs.add(b"c")
    assert len(begun) == 2
    runs.flush(writer)
    assert writer.calls == [(2, [b"a", b"b"]), (3, [b"c"])]


def test_a_call_that_failed_is_made_again_as_it_was(runs: EarlyRuns, writer: Any) -> None:
    writer.fails = 1
    runs.add(b"a")
    with pytest.raises(ConnectionError):
        runs.flush(writer)
    assert runs
    assert runs.due == 0.0

    runs.add(b"b")
    runs.flush(writer)

    assert writer.calls == [(2, [b"a"]), (2, [b"a"]), (3, [b"b"])]
    assert not runs


def test_many_are_sent_in_parts(runs: EarlyRuns, writer: Any) -> None:
    for number in range(MAX_RUNS + 1):
        runs.add(b"%d" % number)

    runs.flush(writer)

    assert [len(sent) for _, sent in writer.calls] == [MAX_RUNS, 1]


def test_what_is_added_while_others_are_sent_is_sent_after_them(runs: EarlyRuns) -> None:

    class Slow(Writer):
        def add(self, worker_id: str, number: int, most: int, runs_sent: list[bytes]) -> int:
            if number == 2:
                runs.add(b"meanwhile")
            return super().add(worker_id, number, most, runs_sent)

    writer: Any = Slow()
    runs.add(b"first")
    runs.flush(writer)

    assert writer.calls == [(2, [b"first"]), (3, [b"meanwhile"])]


def test_at_the_end_nothing_waits(runs: EarlyRuns) -> None:
    runs.send_soon()
    assert runs.due == math.inf

    runs.add(b"a")
    runs.send_soon()
    assert runs.due == 0.0


def test_while_a_call_is_due_the_thread_has_work_though_nothing_waits(
    runs: EarlyRuns, writer: Any
) -> None:
    """A run that is added until then wakes nobody."""

    class Slow(Writer):
        def add(self, worker_id: str, number: int, most: int, runs_sent: list[bytes]) -> int:
            if number == 2:
                runs.add(b"meanwhile")
            return super().add(worker_id, number, most, runs_sent)

    slow: Any = Slow()
    runs.add(b"first")
    runs.flush(slow)
    assert runs

    runs.flush(writer)
    assert not runs
    assert writer.calls == []
