"""Policies of retrying: what may be given, what it comes to, and what a message carries of it."""

from __future__ import annotations

import json
import logging
import math
from datetime import timedelta
from fractions import Fraction
from typing import Any

import pytest
from celery import Task
from hypothesis import given
from hypothesis import strategies as st

from celery_delayq.errors import InvalidRetry
from celery_delayq.model.retries.policy import (
    MAX_WAIT_SECONDS,
    STEPPED,
    TEN_RETRIES,
    UNSET,
    Exponential,
    RetryPolicy,
)

HOUR = timedelta(hours=1)

#: A whole number that is no float.
HUGE = 10**400

seconds = st.floats(0, MAX_WAIT_SECONDS) | st.integers(0, int(MAX_WAIT_SECONDS))
exponentials = st.builds(Exponential, seconds, st.floats(1, 1000), seconds)
intervals = seconds | st.lists(seconds, min_size=1, max_size=12) | exponentials
limits = st.just(UNSET) | st.none() | st.integers(0, 10**9)
policies = st.builds(RetryPolicy, intervals, limits, st.floats(0, 1))


def waits(policy: RetryPolicy, number: int) -> list[float]:
    return [policy.wait(retries) for retries in range(number)]


def nothing() -> None:
    """Stand for any task."""


def double(retries: int, factor: float = 2) -> float:
    return retries * factor


# -- forms of intervals


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((15, 180), [15, 180, 180, 180]),
        ([0.5], [0.5, 0.5, 0.5, 0.5]),
        (range(1, 4), [1, 2, 3, 3]),
        (30, [30, 30, 30, 30]),
        (0, [0, 0, 0, 0]),
        (HOUR, [3600, 3600, 3600, 3600]),
        ([HOUR, 5], [3600, 5, 5, 5]),
        (Exponential(), [1, 2, 4, 8]),
        (Exponential(10, 3, 100), [10, 30, 90, 100]),
        (Exponential(HOUR.total_seconds(), 1), [3600, 3600, 3600, 3600]),
        (lambda retries: retries * 7, [0, 7, 14, 21]),
        (lambda retries: timedelta(minutes=retries), [0, 60, 120, 180]),
    ],
)
def test_intervals_may_be_given_in_several_forms(given: Any, expected: list[float]) -> None:
    assert waits(RetryPolicy(given), 4) == expected


def test_the_ready_made_policies_are_those_that_are_documented() -> None:
    minute, hour = 60, 3600
    steps = [15, 3 * minute, 10 * minute, 30 * minute, 30 * minute]
    assert list(STEPPED) == [*steps, hour, 2 * hour, 6 * hour, 15 * hour]
    assert RetryPolicy(STEPPED).limit == 9

    assert TEN_RETRIES.limit == 10
    assert waits(TEN_RETRIES, 10) == [15, 30, 60, 120, 240, 480, 960, 1920, 3600, 3600]


@pytest.mark.parametrize(
    ("growing", "expected"),
    [
        (Exponential(1e-3, 1000, MAX_WAIT_SECONDS), [1000, MAX_WAIT_SECONDS, MAX_WAIT_SECONDS]),
        (Exponential(0, 2, 60), [0] * 3),
    ],
)
def test_an_exponential_never_goes_beyond_its_longest(
    growing: Exponential, expected: list[float]
) -> None:
    assert [growing(retries) for retries in (2, 10**3, 10**6)] == expected


# -- how many


@pytest.mark.parametrize(
    ("policy", "limit"),
    [
        (RetryPolicy((1, 2, 3)), 3),
        (RetryPolicy((1, 2, 3), max_retries=5), 5),
        (RetryPolicy((1, 2, 3), max_retries=1), 1),
        (RetryPolicy((1, 2, 3), max_retries=0), 0),
        (RetryPolicy((1, 2, 3), max_retries=None), None),
        (RetryPolicy(30), Task.max_retries),
        (RetryPolicy(30, max_retries=None), None),
        (RetryPolicy(Exponential()), Task.max_retries),
        (RetryPolicy(lambda _: 1), Task.max_retries),
        (RetryPolicy(lambda _: 1, max_retries=8), 8),
        (RetryPolicy(), Task.max_retries),
    ],
)
def test_the_limit_is_that_given_or_the_number_of_steps_or_celerys(
    policy: RetryPolicy, limit: int | None
) -> None:
    assert policy.limit == limit


# -- waits


@given(policies, st.integers(0, 10**6))
def test_no_wait_is_negative_or_beyond_the_longest(policy: RetryPolicy, retries: int) -> None:
    assert 0 <= policy.wait(retries) <= MAX_WAIT_SECONDS


@given(intervals, st.floats(0, 1), st.integers(0, 40))
def test_jitter_only_shortens_a_wait_and_by_no_more_than_its_part(
    given: Any, jitter: float, retries: int
) -> None:
    whole = RetryPolicy(given).wait(retries)

    found = RetryPolicy(given, jitter=jitter).wait(retries)

    assert whole * (1 - jitter) <= found <= whole or math.isclose(found, whole * (1 - jitter))


def test_jitter_reaches_all_that_it_may_and_differs() -> None:
    found = [RetryPolicy(100, jitter=0.2).wait(0) for _ in range(1000)]

    assert 80 <= min(found) < 81
    assert 99 < max(found) <= 100
    assert len(set(found)) > 900


@pytest.mark.parametrize(("given", "jitter"), [(True, 1.0), (False, 0.0), (0, 0.0), (1, 1.0)])
def test_jitter_may_be_given_as_in_celery(given: Any, jitter: float) -> None:
    assert RetryPolicy(jitter=given).jitter == jitter


@pytest.mark.parametrize(
    "returned",
    [-1, math.nan, math.inf, -math.inf, "5", None, True, [1], MAX_WAIT_SECONDS + 1, HUGE],
)
def test_a_function_that_returns_no_number_of_seconds_costs_no_task(
    returned: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert RetryPolicy(lambda _: returned).wait(2) == Task.default_retry_delay

    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert "after 2 retries" in record.message


def test_nor_does_one_that_raises(caplog: pytest.LogCaptureFixture) -> None:
    def broken(retries: int) -> float:
        return 1 / retries

    policy = RetryPolicy(broken)

    assert waits(policy, 3) == [Task.default_retry_delay, 1, 0.5]
    assert "ZeroDivisionError" in caplog.text


# -- what is tried again


def test_what_is_refused_goes_before_what_is_tried_again() -> None:
    policy = RetryPolicy(1, retry_for=(OSError, KeyError), dont_retry_for=(FileNotFoundError,))

    kinds = (OSError, ConnectionError, KeyError, FileNotFoundError, ValueError)
    assert [policy.covers(kind()) for kind in kinds] == [True, True, True, False, False]
    assert RetryPolicy(retry_for=OSError).retry_for == (OSError,)  # type: ignore[arg-type]
    covered = [RetryPolicy().covers(exc()) for exc in (Exception, SystemExit, KeyboardInterrupt)]
    assert covered == [True, False, False], "by default all but exits"


# -- bad input


NUMBERS = [
    -1,
    -0.001,
    math.nan,
    math.inf,
    -math.inf,
    HUGE,
    MAX_WAIT_SECONDS + 1,
    Fraction(1, 2),
    True,
]
LISTS: list[Any] = [[], (), [1, -1], [math.nan], ["15"], [None], [True], [[1]]]
OTHERS = ["15", "", b"15", {"first": 1}, {}, None, timedelta(seconds=-1), timedelta.max, object()]


@pytest.mark.parametrize("given", [*NUMBERS, *LISTS, *OTHERS], ids=lambda given: repr(given)[:15])
def test_intervals_that_are_none_are_refused_by_name(given: Any) -> None:
    with pytest.raises(InvalidRetry, match="retry_intervals"):
        RetryPolicy(given)


def test_a_wrong_interval_is_named_with_what_would_be_right() -> None:
    with pytest.raises(InvalidRetry) as caught:
        RetryPolicy([15, -3, 600])

    assert str(caught.value) == (
        "retry_intervals=[15, -3, 600]: step -3: expected a timedelta or a number of seconds "
        "from 0 to 315360000"
    )


#: What the error of a wrong argument names as right, and wrong values.
CLASSES = "expected exception classes"
WRONG: dict[str, tuple[str, list[Any]]] = {
    "max_retries": (
        "max_retries=.*expected 0 or more, or None",
        [-1, -10, 1.5, 3.0, "3", True, False, math.nan, [3], UNSET.__class__],
    ),
    "jitter": (
        "retry_jitter=.*expected a number from 0 to 1",
        [-0.1, 1.1, math.nan, math.inf, "0.5", None, [0.5], HUGE],
    ),
    "retry_for": (CLASSES, ["ValueError", [ValueError, int], ValueError(), 5, None]),
    "dont_retry_for": (CLASSES, ["ValueError", [ValueError, int], ValueError(), 5, None]),
}


@pytest.mark.parametrize(
    ("name", "given"), [(name, given) for name, (_, some) in WRONG.items() for given in some]
)
def test_a_wrong_argument_is_refused_with_what_would_be_right(name: str, given: Any) -> None:
    with pytest.raises(InvalidRetry, match=WRONG[name][0]) as caught:
        RetryPolicy(**{name: given})

    assert name in str(caught.value)


WRONG_EXPONENTIAL: dict[str, list[Any]] = {
    "first": [-1, math.nan, "1"],
    "factor": [0.5, 0, -2, math.nan, math.inf, True, 1001, HUGE],
    "longest": [-1, math.inf, MAX_WAIT_SECONDS + 1, None],
}


@pytest.mark.parametrize(
    ("name", "given"), [(name, given) for name, some in WRONG_EXPONENTIAL.items() for given in some]
)
def test_an_exponential_that_shrinks_or_has_no_end_is_refused(name: str, given: Any) -> None:
    with pytest.raises(InvalidRetry, match=f"Exponential.{name}="):
        Exponential(**{name: given})


# -- the property


@given(policies)
def test_a_policy_is_read_from_a_message_as_it_was_written(policy: RetryPolicy) -> None:
    written = json.loads(json.dumps(policy.as_property()))

    assert RetryPolicy(jitter=policy.jitter).with_property(written) == policy


@given(policies, policies)
def test_what_a_message_says_goes_before_what_the_task_says(
    task: RetryPolicy, call: RetryPolicy
) -> None:
    written = json.loads(json.dumps(call.as_property()))

    found = task.with_property(written)

    assert found.intervals == call.intervals
    assert found.limit == call.limit, "a limit of the task goes with the intervals of the task"
    assert found.retry_for == task.retry_for


def test_a_limit_alone_leaves_the_intervals_of_the_task() -> None:
    policy = RetryPolicy((1, 2, 3), retry_for=(OSError,), jitter=0.5)

    assert policy.with_property({"max": 9}) == RetryPolicy((1, 2, 3), 9, 0.5, (OSError,))
    assert policy.with_property({}) == policy


WRONG_OWN: dict[str, list[Any]] = {
    "intervals": ["x", None, [], [1, "x"], {"a": 1}, -1, HUGE],
    "exponential": [None, 5, [1, 2, 3, 4], ["a", "b", "c"], [1, 0.5, 3], {"x": 1}],
    "max": [-1, "3", [3]],
    "jitter": [7, {}],
}
NO_MAPPINGS = [5, "x", ["intervals"], None]


@pytest.mark.parametrize(
    "own", [*NO_MAPPINGS, *({name: each} for name, some in WRONG_OWN.items() for each in some)]
)
def test_a_property_that_nobody_has_written_is_an_error(own: Any) -> None:
    with pytest.raises(InvalidRetry):
        RetryPolicy().with_property(own)
