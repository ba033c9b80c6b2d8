"""Changes that wait for Redis are made in their order, once it takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis.exceptions import ResponseError

from celery_delayq.dispatch.pending_changes import (
    MAX_FAILURES,
    MAX_REFUSED_CHANGES,
    AfterFailure,
    PendingChange,
    PendingChanges,
)
from celery_delayq.errors import BrokerUnavailable, CommandRefused, StoreFull
from celery_delayq.store.scripting.errors import error_of

STORE: Any = object()


def failing(times: int, error: Exception, made: list[str]) -> Callable[[Any], None]:
    """Return a change that fails so many times."""
    errors = [error] * times

    def make(store: Any) -> None:
        if errors:
            raise errors.pop()
        made.append("first")

    return make


@pytest.fixture
def changes() -> PendingChanges:
    return PendingChanges(lambda: None)


@pytest.mark.parametrize(
    ("error", "times"),
    [(BrokerUnavailable(), 100), (ValueError("I/O operation on closed file"), MAX_FAILURES - 1)],
)
def test_what_fails_is_made_again_before_what_came_later(
    error: Exception, times: int, changes: PendingChanges
) -> None:
    made: list[str] = []
    changes.add(failing(times, error, made))
    changes.add(lambda _: made.append("second"))

    for _ in range(times):
        with pytest.raises(type(error)):
            changes.flush(STORE)
    assert made == []
    changes.flush(STORE)

    assert made == ["first", "second"]
    assert not changes


@pytest.mark.parametrize(
    "answer",
    [
        "NOREPLICAS Not enough good replicas to write. script: 51, on @user_script:81.",
        "Error running script (call to f_51): @user_script:81: -NOREPLICAS Not enough replicas",
        "MISCONF Errors writing to the AOF file: No space left on device",
        "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    ],
)
def test_what_no_server_takes_for_now_is_made_when_it_does(
    answer: str, changes: PendingChanges
) -> None:
    made: list[str] = []
    changes.add(failing(100, error_of(ResponseError(answer)), made))

    for _ in range(100):
        with pytest.raises(BrokerUnavailable):
            changes.flush(STORE)
    changes.flush(STORE)

    assert made == ["first"]
    assert not changes


@pytest.mark.parametrize(
    "error", [StoreFull("no memory"), error_of(ResponseError("NOPERM no permissions"))]
)
def test_what_needs_memory_or_a_right_waits_and_lets_others_go_first(
    error: Exception, changes: PendingChanges
) -> None:
    made: list[str] = []
    changes.add(failing(3, error, made))
    changes.add(lambda _: made.append("second"))

    for _ in range(3):
        with pytest.raises(BrokerUnavailable):
            changes.flush(STORE)
        assert made == ["second"]
    changes.flush(STORE)

    assert made == ["second", "first"]
    assert not changes


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (CommandRefused("user_script:1: attempt to index nil"), BrokerUnavailable),
        (ValueError(), ValueError),
    ],
)
def test_what_cannot_be_made_is_logged_with_what_is_lost(
    error: Exception,
    raised: type[Exception],
    changes: PendingChanges,
    caplog: pytest.LogCaptureFixture,
) -> None:
    made: list[str] = []
    changes.add(failing(MAX_FAILURES, error, made), "task-1 is lost")
    changes.add(lambda _: made.append("second"))

    for _ in range(MAX_FAILURES - 1):
        with pytest.raises(raised):
            changes.flush(STORE)
    changes.flush(STORE)

    assert made == ["second"]
    assert caplog.messages == ["A change was not made. task-1 is lost"]


def test_what_a_key_of_another_type_refuses_is_kept_until_it_passes(
    changes: PendingChanges,
) -> None:
    made: list[str] = []
    times = 2 * MAX_FAILURES
    changes.add(failing(times, CommandRefused("WRONGTYPE"), made))

    for _ in range(times):
        with pytest.raises(BrokerUnavailable):
            changes.flush(STORE)
    changes.flush(STORE)

    assert made == ["first"]


def test_those_that_are_refused_take_no_longer_than_others_may(changes: PendingChanges) -> None:
    """Leases are extended in between, so each turn has an end."""
    made: list[str] = []
    for _ in range(5):
        changes.add(failing(1, StoreFull("OOM"), made))

    for _ in range(5):
        with pytest.raises(BrokerUnavailable):
            changes.flush(STORE, until=0.0)
    assert made == []
    changes.flush(STORE)

    assert made == ["first"] * 5


def test_what_is_given_up_is_logged(
    changes: PendingChanges, caplog: pytest.LogCaptureFixture
) -> None:
    changes.add(lambda _: None, "task-1 is lost")
    changes.add(lambda _: None)

    changes.give_up()

    assert caplog.messages == ["Redis was away when this process ended. task-1 is lost"]


FIRST, LAST, GIVEN_UP = AfterFailure.STAYS_FIRST, AfterFailure.GOES_LAST, AfterFailure.GIVEN_UP
OUTAGE, REFUSED, FULL = BrokerUnavailable("away"), CommandRefused("NOPERM"), StoreFull("OOM")
FAULT, OTHER = CommandRefused("user_script:1: attempt to index nil"), RuntimeError("closed")


@pytest.mark.parametrize(
    ("error", "failures", "waiting", "expected", "counted"),
    [
        (OUTAGE, 0, 1, FIRST, 0),
        (OSError(), MAX_FAILURES, MAX_REFUSED_CHANGES + 1, FIRST, 0),
        (REFUSED, 0, MAX_REFUSED_CHANGES, LAST, 0),
        (REFUSED, 0, MAX_REFUSED_CHANGES + 1, GIVEN_UP, 1),
        (FULL, MAX_FAILURES - 1, MAX_REFUSED_CHANGES, LAST, 0),
        (FULL, 0, MAX_REFUSED_CHANGES + 1, FIRST, 1),
        (FULL, MAX_FAILURES - 1, MAX_REFUSED_CHANGES + 1, GIVEN_UP, 1),
        (FAULT, 0, 1, LAST, 1),
        (FAULT, MAX_FAILURES - 1, 1, GIVEN_UP, 1),
        (FAULT, 0, MAX_REFUSED_CHANGES + 1, GIVEN_UP, 1),
        (OTHER, 0, 1, FIRST, 1),
        (OTHER, MAX_FAILURES - 1, 1, GIVEN_UP, 1),
    ],
)
def test_what_becomes_of_a_change_that_has_failed(
    error: Exception, failures: int, waiting: int, expected: AfterFailure, counted: int
) -> None:
    change = PendingChange(lambda _: None, failures=failures)

    assert change.note_failure(error, waiting) is expected
    assert change.failures == failures + counted
