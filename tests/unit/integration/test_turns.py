"""Where a task of a worker is, up to its beginning: which turn may follow which."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import pytest

from celery_delayq.integration.endings.turn import NEXT_TURNS, Turn
from celery_delayq.integration.request import RequestMixin

#: All that may follow. A task that has begun or is refused stays so.
ALLOWED = {
    (Turn.WAITING, Turn.GIVEN),
    (Turn.WAITING, Turn.BEGUN),
    (Turn.WAITING, Turn.REFUSED),
    (Turn.GIVEN, Turn.BEGUN),
    (Turn.GIVEN, Turn.REFUSED),
}


def request_in(turn: Turn) -> RequestMixin:
    request = object.__new__(RequestMixin)
    request.turn = turn
    return request


def enter_with(turn: Turn, request: RequestMixin, both: threading.Barrier) -> bool:
    both.wait()
    return request.enter(turn)


def test_each_turn_has_those_that_follow() -> None:
    assert {*NEXT_TURNS} == {*Turn}


@pytest.mark.parametrize(("before", "turn"), [*product(Turn, Turn)])
def test_a_turn_is_entered_only_where_it_may_follow(before: Turn, turn: Turn) -> None:
    request = request_in(before)
    entered = request.enter(turn)
    assert entered == ((before, turn) in ALLOWED or before is turn)
    assert request.turn is (turn if entered else before)


def test_of_the_pool_and_the_worker_one_is_first() -> None:
    for _ in range(200):
        request, both = request_in(Turn.GIVEN), threading.Barrier(2)

        with ThreadPoolExecutor(2) as threads:
            turns = (Turn.BEGUN, Turn.REFUSED)
            entered = [*threads.map(enter_with, turns, [request] * 2, [both] * 2)]
        assert sorted(entered) == [False, True]
        assert request.turn is turns[entered.index(True)]
