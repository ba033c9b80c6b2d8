"""Policies of retrying: what may be given, what it comes to, and what a message carries of it."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from datetime import timedelta
from fractions import Fraction
from typing import Any

import pytest
from celery import Celery, Task
from hypothesis import given
from hypothesis import strategies as st

from celery_delayq import DelayQ
from celery_delayq.errors import InvalidRetry
from celery_delayq.integration.retries import attempts_of
from celery_delayq.model.retry_options import (
    LARGEST_BUDGET,
    defaults_of,
    of_call,
    of_task,
    unmatched,
)
from celery_delayq.model.retry_policy import (
    LONGEST,
    STEPPED,
    TEN_RETRIES,
    UNSET,
    Exponential,
    RetryPolicy,
)

HOUR = timedelta(hours=1)

#: A whole number that is no float.
HUGE = 10**400

seconds = st.floats(0, LONGEST) | st.integers(0, int(LONGEST))
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


def test_an_exponential_never_goes_beyond_its_longest() -> None:
    growing = Exponential(1e-3, 1000, LONGEST)

    assert [growing(retries) for retries in (2, 10**3, 10**6)] == [1000, LONGEST, LONGEST]


def test_an_exponential_that_begins_with_nothing_stays_there() -> None:
    assert {Exponential(0, 2, 60)(retries) for retries in (0, 1, 10**4)} == {0}


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
    assert 0 <= policy.wait(retries) <= LONGEST


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
    "returned", [-1, math.nan, math.inf, -math.inf, "5", None, True, [1], LONGEST + 1, HUGE]
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

    assert policy.covers(OSError())
    assert policy.covers(ConnectionError())
    assert policy.covers(KeyError())
    assert not policy.covers(FileNotFoundError())
    assert not policy.covers(ValueError())


def test_without_a_word_all_exceptions_are_tried_again_but_no_exits() -> None:
    assert RetryPolicy().covers(Exception())
    assert not RetryPolicy().covers(SystemExit())
    assert not RetryPolicy().covers(KeyboardInterrupt())


def test_one_class_may_stand_for_itself() -> None:
    assert RetryPolicy(retry_for=OSError).retry_for == (OSError,)  # type: ignore[arg-type]


# -- bad input


@pytest.mark.parametrize(
    "given",
    [
        -1,
        -0.001,
        [1, -1],
        math.nan,
        [math.nan],
        math.inf,
        -math.inf,
        HUGE,
        LONGEST + 1,
        [],
        (),
        "15",
        "",
        b"15",
        ["15"],
        {"first": 1},
        {},
        None,
        [None],
        True,
        [True],
        [[1]],
        Fraction(1, 2),
        timedelta(seconds=-1),
        timedelta.max,
        object(),
    ],
    ids=lambda given: type(given).__name__,
)
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


@pytest.mark.parametrize(
    "given", [-1, -10, 1.5, 3.0, "3", True, False, math.nan, [3], UNSET.__class__]
)
def test_a_limit_below_zero_or_of_another_type_is_refused(given: Any) -> None:
    with pytest.raises(InvalidRetry, match=r"max_retries=.*expected 0 or more, or None"):
        RetryPolicy(max_retries=given)


@pytest.mark.parametrize(
    "given", [-0.1, 1.1, math.nan, math.inf, "0.5", None, [0.5], HUGE], ids=lambda x: str(x)[:9]
)
def test_jitter_that_is_no_part_is_refused(given: Any) -> None:
    with pytest.raises(InvalidRetry, match=r"retry_jitter=.*expected a number from 0 to 1"):
        RetryPolicy(jitter=given)


@pytest.mark.parametrize("name", ["retry_for", "dont_retry_for"])
@pytest.mark.parametrize(
    "given", ["ValueError", [ValueError, int], ValueError(), 5, None], ids=repr
)
def test_what_is_no_exception_class_is_refused(name: str, given: Any) -> None:
    with pytest.raises(InvalidRetry, match=f"{name}=.*expected exception classes"):
        RetryPolicy(**{name: given})


@pytest.mark.parametrize(
    "arguments",
    [
        {"first": -1},
        {"first": math.nan},
        {"first": "1"},
        {"factor": 0.5},
        {"factor": 0},
        {"factor": -2},
        {"factor": math.nan},
        {"factor": math.inf},
        {"factor": True},
        {"factor": 1001},
        {"factor": HUGE},
        {"longest": -1},
        {"longest": math.inf},
        {"longest": LONGEST + 1},
        {"longest": None},
    ],
    ids=lambda arguments: str(arguments)[:30],
)
def test_an_exponential_that_shrinks_or_has_no_end_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidRetry, match=f"Exponential.{next(iter(arguments))}="):
        Exponential(**arguments)


# -- of a task


@pytest.fixture
def app() -> Celery:
    app = Celery("app", broker="memory://", set_as_current=False)
    app.finalize()
    return app


def policy_of(
    app: Celery, defaults: Mapping[str, RetryPolicy] | None = None, **options: Any
) -> RetryPolicy | None:
    """Return the policy of a new task ``shop.mail`` with these options."""
    app.tasks.pop("shop.mail", None)
    return of_task(app.task(name="shop.mail", shared=False, **options)(nothing), defaults or {})


def test_a_task_without_options_has_no_policy(app: Celery) -> None:
    assert policy_of(app) is None
    assert policy_of(app, max_retries=7) is None


def test_a_task_has_what_it_says(app: Celery) -> None:
    policy = policy_of(
        app,
        retry_intervals=(1, 2),
        max_retries=9,
        retry_jitter=0.5,
        retry_for=(OSError,),
        dont_retry_for=(FileNotFoundError,),
    )

    assert policy == RetryPolicy((1, 2), 9, 0.5, (OSError,), (FileNotFoundError,))


def test_a_limit_counts_only_when_the_task_was_given_one(app: Celery) -> None:
    class Patient(Task):
        max_retries = 8

    assert policy_of(app, retry_intervals=(1, 2)) == RetryPolicy((1, 2))
    assert policy_of(app, retry_intervals=(1, 2), base=Patient) == RetryPolicy((1, 2), 8)
    both = policy_of(app, retry_intervals=(1, 2), base=Patient, max_retries=3)
    assert both == RetryPolicy((1, 2), 3)


def test_none_for_a_limit_is_none(app: Celery) -> None:
    policy = policy_of(app, retry_intervals=(1, 2), max_retries=None)

    assert policy is not None
    assert policy.limit is None


def test_a_class_gives_its_tasks_a_policy(app: Celery) -> None:
    class Stubborn(Task):
        retry_intervals = (5, 50)
        dont_retry_for = (KeyError,)

    policy = policy_of(app, base=Stubborn)

    assert policy == RetryPolicy((5, 50), dont_retry_for=(KeyError,))


def test_annotations_give_tasks_a_policy_and_a_limit() -> None:
    app = Celery("app", broker="memory://", set_as_current=False)
    app.conf.task_annotations = {
        "shop.mail": {"retry_intervals": (5,), "max_retries": 4},
        "*": {"retry_jitter": 0.1},
    }

    task = app.task(name="shop.mail", shared=False)(nothing)
    app.finalize()

    assert of_task(app.tasks[task.name], {}) == RetryPolicy((5,), 4, 0.1)


def test_the_intervals_of_a_method_are_a_function(app: Celery) -> None:
    class Own(Task):
        def retry_intervals(self, retries: int) -> float:
            return retries + 0.5

    policy = policy_of(app, base=Own)

    assert policy is not None
    assert waits(policy, 2) == [0.5, 1.5]


def test_an_option_that_is_a_function_is_no_method(app: Celery) -> None:
    policy = policy_of(app, retry_intervals=double)

    assert policy is not None
    assert waits(policy, 3) == [0, 2, 4]


def test_false_is_for_none_whatever_the_app_says(app: Celery) -> None:
    assert policy_of(app, {"*": TEN_RETRIES}, retry_intervals=False) is None


def test_what_is_to_be_tried_again_is_a_policy_with_celerys_own_delay(app: Celery) -> None:
    policy = policy_of(app, retry_for=OSError, default_retry_delay=7, max_retries=2)

    assert policy == RetryPolicy(7, 2, retry_for=(OSError,))


def test_what_celery_does_not_try_again_is_not_tried_again_by_policy(app: Celery) -> None:
    policy = policy_of(
        app, retry_intervals=(1,), dont_retry_for=(KeyError,), dont_autoretry_for=(OSError,)
    )

    assert policy is not None
    assert policy.dont_retry_for == (KeyError, OSError)


def test_a_task_that_is_tried_again_by_celery_has_no_default_policy(app: Celery) -> None:
    defaults = {"*": TEN_RETRIES}

    assert policy_of(app, defaults, autoretry_for=(OSError,)) is None
    own = policy_of(app, defaults, autoretry_for=(OSError,), retry_intervals=(1, 2))
    assert own == RetryPolicy((1, 2))


def test_the_first_pattern_that_matches_is_the_default(app: Celery) -> None:
    defaults = defaults_of({"shop.[a-f]*": 1, "shop.m*": 2, "*": 3})

    assert policy_of(app, defaults) == RetryPolicy(2)
    assert policy_of(app, defaults_of({"SHOP.*": 1})) is None


def test_a_task_changes_what_it_says_of_a_default(app: Celery) -> None:
    policy = policy_of(app, {"*": TEN_RETRIES}, max_retries=2, dont_retry_for=(KeyError,))

    assert policy is not None
    assert (policy.limit, policy.dont_retry_for) == (2, (KeyError,))
    assert policy.intervals == TEN_RETRIES.intervals


def test_a_tasks_own_jitter_goes_before_that_of_a_default(app: Celery) -> None:
    policy = policy_of(app, {"*": TEN_RETRIES}, retry_jitter=0.3)

    assert policy is not None
    assert policy.jitter == 0.3


@pytest.mark.parametrize(
    "options",
    [
        {"retry_intervals": ()},
        {"retry_intervals": -1},
        {"retry_intervals": "15 s"},
        {"retry_intervals": True},
        {"retry_intervals": (1,), "max_retries": -1},
        {"retry_intervals": (1,), "max_retries": "3"},
        {"retry_intervals": (1,), "retry_jitter": 2},
        {"retry_for": "OSError"},
        {"retry_intervals": 1, "dont_retry_for": (5,)},
        {"dont_retry_for": "OSError"},
        {"dont_retry_for": "OSError", "autoretry_for": (OSError,)},
    ],
    ids=str,
)
def test_a_task_whose_options_are_none_is_named(app: Celery, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRetry, match=r"^task shop\.mail: "):
        policy_of(app, **options)


@pytest.mark.parametrize("limit", [3.0, math.inf, -1])
def test_what_celery_takes_is_not_refused_where_there_is_no_policy(app: Celery, limit: Any) -> None:
    assert policy_of(app, max_retries=limit) is None
    assert policy_of(app, {"*": TEN_RETRIES}, max_retries=limit, autoretry_for=(OSError,)) is None
    assert policy_of(app, max_retries=limit, retry_intervals=False) is None


def test_an_app_tells_of_them_when_it_knows_its_tasks(caplog: pytest.LogCaptureFixture) -> None:
    """A worker does not start; others may not need that task at all."""
    app = Celery("app", broker="memory://", set_as_current=False)
    DelayQ(app)
    app.task(name="shop.mail", shared=False, retry_intervals=(1, math.nan))(nothing)
    app.task(name="shop.other", shared=False, retry_intervals=(1, 2))(nothing)

    app.finalize()

    assert attempts_of(app.tasks["shop.mail"]) is None
    assert attempts_of(app.tasks["shop.other"]) is not None
    assert "task shop.mail: retry_intervals=(1, nan): step nan: expected" in caplog.text


# -- of an app


def test_one_default_is_for_all_tasks() -> None:
    assert defaults_of(None) == {}
    assert defaults_of({}) == {}
    assert defaults_of(TEN_RETRIES) == {"*": TEN_RETRIES}
    assert defaults_of((1, 2)) == {"*": RetryPolicy((1, 2))}
    assert defaults_of({"a.*": 5, "b.?": TEN_RETRIES}) == {
        "a.*": RetryPolicy(5),
        "b.?": TEN_RETRIES,
    }


@pytest.mark.parametrize("given", [{"": 1}, {5: 1}, {None: 1}, {"a": -1}, {"a": ()}, -1, (), "x"])
def test_defaults_that_are_none_are_refused_when_the_extension_is_made(given: Any) -> None:
    with pytest.raises(InvalidRetry, match="retry"):
        DelayQ(retry=given)


def test_patterns_that_match_nothing_are_found() -> None:
    defaults = defaults_of({"shop.*": 1, "shoo.*": 1, "celery.*": 1, "*": 1})

    assert unmatched(defaults, ["shop.mail", "celery.chord"]) == ["shoo.*", "celery.*"]
    assert unmatched(defaults_of(5), ["celery.chord"]) == ["*"]


# -- of a call


@pytest.mark.parametrize(
    ("options", "own"),
    [
        ({}, {}),
        ({"retry_intervals": None, "retry_jitter": None}, {}),
        ({"max_retries": None}, {"retry": {"max": None}}),
        ({"retry_intervals": 5, "max_retries": None}, {"retry": {"intervals": 5, "max": None}}),
        ({"retry_intervals": (1, 2)}, {"retry": {"intervals": [1, 2]}}),
        ({"retry_intervals": HOUR}, {"retry": {"intervals": 3600}}),
        ({"retry_intervals": 5, "max_retries": 2}, {"retry": {"intervals": 5, "max": 2}}),
        ({"retry_intervals": False}, {"retry": {"intervals": False}}),
        ({"retry_intervals": Exponential(1, 2, 9)}, {"retry": {"exponential": [1, 2, 9]}}),
        ({"max_retries": 0}, {"retry": {"max": 0}}),
        ({"retry_jitter": 0.5}, {"retry": {"jitter": 0.5}}),
        ({"retry_budget": 3}, {"budget": 3}),
        ({"retry_budget": 0}, {"budget": 0}),
        ({"retry_budget": 3, "max_retries": 1}, {"budget": 3, "retry": {"max": 1}}),
        ({"unique_key": "x"}, {}),
    ],
    ids=str,
)
def test_a_message_carries_what_a_call_says_and_no_more(
    options: dict[str, Any], own: dict[str, Any]
) -> None:
    assert of_call("shop.mail", options) == own


def test_no_jitter_may_be_asked_for_by_a_call_of_a_task_that_has_some() -> None:
    own = of_call("shop.mail", {"retry_jitter": False})["retry"]

    assert RetryPolicy((1, 2), jitter=0.5).with_property(own) == RetryPolicy((1, 2))


@pytest.mark.parametrize(
    "options",
    [
        {"retry_intervals": double},
        {"retry_intervals": ()},
        {"retry_intervals": -1},
        {"retry_intervals": math.nan},
        {"retry_intervals": "15"},
        {"retry_intervals": True},
        {"retry_intervals": {"a": 1}},
        {"max_retries": -1},
        {"max_retries": 1.0},
        {"max_retries": True},
        {"retry_jitter": 1.5},
        {"retry_jitter": "much"},
        {"retry_budget": -1},
        {"retry_budget": 1.5},
        {"retry_budget": True},
        {"retry_budget": "3"},
        {"retry_budget": LARGEST_BUDGET + 1},
        {"retry_for": (ValueError,)},
        {"dont_retry_for": (ValueError,)},
        {"false_is_failure": True},
        {"dead_letter": False},
    ],
)
def test_a_call_whose_options_are_none_is_refused_with_their_name(options: dict[str, Any]) -> None:
    [name] = options
    with pytest.raises(InvalidRetry, match=rf"^shop\.mail: {name}"):
        of_call("shop.mail", options)


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


@pytest.mark.parametrize(
    "own",
    [
        5,
        "x",
        ["intervals"],
        None,
        {"intervals": "x"},
        {"intervals": None},
        {"intervals": []},
        {"intervals": [1, "x"]},
        {"intervals": {"a": 1}},
        {"intervals": -1},
        {"intervals": HUGE},
        {"exponential": None},
        {"exponential": 5},
        {"exponential": [1, 2, 3, 4]},
        {"exponential": ["a", "b", "c"]},
        {"exponential": [1, 0.5, 3]},
        {"exponential": {"x": 1}},
        {"max": -1},
        {"max": "3"},
        {"max": [3]},
        {"jitter": 7},
        {"jitter": {}},
    ],
    ids=lambda own: str(own)[:30],
)
def test_a_property_that_nobody_has_written_is_an_error(own: Any) -> None:
    with pytest.raises(InvalidRetry):
        RetryPolicy().with_property(own)
