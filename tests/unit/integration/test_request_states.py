"""The state of a task in a worker until it begins, and the allowed changes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import pytest

from celery_delayq.integration.endings.request import RequestMixin
from celery_delayq.integration.endings.request_state import NEXT_STATES, RequestState

#: The allowed changes. A task that has begun or is refused stays so.
ALLOWED = {
    (RequestState.WAITING, RequestState.GIVEN),
    (RequestState.WAITING, RequestState.BEGUN),
    (RequestState.WAITING, RequestState.REFUSED),
    (RequestState.GIVEN, RequestState.BEGUN),
    (RequestState.GIVEN, RequestState.REFUSED),
}


def request_in(state: RequestState) -> RequestMixin:
    request = object.__new__(RequestMixin)
    request.delayq_state = state
    return request


def change_with(state: RequestState, request: RequestMixin, both: threading.Barrier) -> bool:
    both.wait()
    return request.change_state(state)


def test_each_state_has_its_next_states() -> None:
    assert {*NEXT_STATES} == {*RequestState}


@pytest.mark.parametrize(("before", "state"), [*product(RequestState, RequestState)])
def test_a_state_changes_only_to_an_allowed_one(before: RequestState, state: RequestState) -> None:
    request = request_in(before)
    changed = request.change_state(state)
    assert changed == ((before, state) in ALLOWED or before is state)
    assert request.delayq_state is (state if changed else before)


def test_of_the_pool_and_the_worker_one_is_first() -> None:
    for _ in range(200):
        request, both = request_in(RequestState.GIVEN), threading.Barrier(2)

        with ThreadPoolExecutor(2) as threads:
            states = (RequestState.BEGUN, RequestState.REFUSED)
            changed = [*threads.map(change_with, states, [request] * 2, [both] * 2)]
        assert sorted(changed) == [False, True]
        assert request.delayq_state is states[changed.index(True)]
