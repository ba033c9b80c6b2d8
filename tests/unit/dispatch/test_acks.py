"""Changes that wait for Redis are made in their order, once it takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis.exceptions import ConnectionError, ResponseError

from celery_delayq.dispatch.acks import MOST_FAILURES, Changes

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
def changes() -> Changes:
    return Changes(lambda: None)


@pytest.mark.parametrize(
    ("error", "times"),
    [(ConnectionError(), 100), (ValueError("I/O operation on closed file"), MOST_FAILURES - 1)],
)
def test_what_fails_is_made_again_before_what_came_later(
    error: Exception, times: int, changes: Changes
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
def test_what_no_server_takes_for_now_is_made_when_it_does(answer: str, changes: Changes) -> None:
    made: list[str] = []
    changes.add(failing(100, ResponseError(answer), made))

    for _ in range(100):
        with pytest.raises(ConnectionError):
            changes.flush(STORE)
    changes.flush(STORE)

    assert made == ["first"]
    assert not changes


@pytest.mark.parametrize(
    ("error", "times"), [(ResponseError("WRONGTYPE"), 1), (ValueError(), MOST_FAILURES)]
)
def test_what_cannot_be_made_is_logged_with_what_is_lost(
    error: Exception, times: int, changes: Changes, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[str] = []
    changes.add(failing(times, error, made), "task-1 is lost")
    changes.add(lambda _: made.append("second"))

    for _ in range(times - 1):
        with pytest.raises(type(error)):
            changes.flush(STORE)
    changes.flush(STORE)

    assert made == ["second"]
    assert caplog.messages == ["A change was not made. task-1 is lost"]


def test_what_is_given_up_is_logged(changes: Changes, caplog: pytest.LogCaptureFixture) -> None:
    changes.add(lambda _: None, "task-1 is lost")
    changes.add(lambda _: None)

    changes.give_up()

    assert caplog.messages == ["Redis was away when this process ended. task-1 is lost"]
