"""Retry options of tasks, apps and calls."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from celery import Celery, Task

from celery_delayq import DelayQ
from celery_delayq.errors import InvalidRetry
from celery_delayq.integration.retries import attempts_of
from celery_delayq.model.names import unmatched_patterns
from celery_delayq.model.retries.options import (
    MAX_BUDGET,
    policies_by_pattern,
    policy_of_task,
    property_of_call,
)
from celery_delayq.model.retries.policy import TEN_RETRIES, Exponential, RetryPolicy
from tests.unit.model.retries.test_policy import HOUR, double, nothing, waits

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
    return policy_of_task(
        app.task(name="shop.mail", shared=False, **options)(nothing), defaults or {}
    )


class Patient(Task):
    max_retries = 8


class Stubborn(Task):
    retry_intervals = (5, 50)
    dont_retry_for = (KeyError,)


DEFAULTS = {"*": TEN_RETRIES}
STEPS: dict[str, Any] = {"retry_intervals": (1, 2)}
ALL_OPTIONS: dict[str, Any] = {
    **STEPS,
    "max_retries": 9,
    "retry_jitter": 0.5,
    "retry_for": (OSError,),
    "dont_retry_for": (FileNotFoundError,),
}


@pytest.mark.parametrize(
    ("options", "defaults", "expected"),
    [
        ({}, {}, None),
        ({"max_retries": 7}, {}, None),
        (ALL_OPTIONS, {}, RetryPolicy((1, 2), 9, 0.5, (OSError,), (FileNotFoundError,))),
        # A limit counts only when the task was given one.
        (STEPS, {}, RetryPolicy((1, 2))),
        ({**STEPS, "max_retries": None}, {}, RetryPolicy((1, 2), None)),
        ({**STEPS, "base": Patient}, {}, RetryPolicy((1, 2), 8)),
        ({**STEPS, "base": Patient, "max_retries": 3}, {}, RetryPolicy((1, 2), 3)),
        ({"base": Stubborn}, {}, RetryPolicy((5, 50), dont_retry_for=(KeyError,))),
        # Celery's own options.
        (
            {"retry_for": OSError, "default_retry_delay": 7, "max_retries": 2},
            {},
            RetryPolicy(7, 2, retry_for=(OSError,)),
        ),
        (
            {**STEPS, "dont_retry_for": (KeyError,), "dont_autoretry_for": (OSError,)},
            {},
            RetryPolicy((1, 2), dont_retry_for=(KeyError, OSError)),
        ),
        ({"autoretry_for": (OSError,)}, DEFAULTS, None),
        ({**STEPS, "autoretry_for": (OSError,)}, DEFAULTS, RetryPolicy((1, 2))),
        # Defaults of the app: the first pattern that matches counts.
        ({}, policies_by_pattern({"shop.[a-f]*": 1, "shop.m*": 2, "*": 3}), RetryPolicy(2)),
        ({}, policies_by_pattern({"SHOP.*": 1}), None),
        ({"retry_intervals": False}, DEFAULTS, None),
        (
            {"max_retries": 2, "dont_retry_for": (KeyError,)},
            DEFAULTS,
            replace(TEN_RETRIES, max_retries=2, dont_retry_for=(KeyError,)),
        ),
        ({"retry_jitter": 0.3}, DEFAULTS, replace(TEN_RETRIES, jitter=0.3)),
    ],
)
def test_a_policy_comes_from_the_task_its_class_and_the_defaults_of_the_app(
    app: Celery,
    options: dict[str, Any],
    defaults: dict[str, RetryPolicy],
    expected: RetryPolicy | None,
) -> None:
    assert policy_of(app, defaults, **options) == expected


def test_annotations_give_tasks_a_policy_and_a_limit() -> None:
    app = Celery("app", broker="memory://", set_as_current=False)
    app.conf.task_annotations = {
        "shop.mail": {"retry_intervals": (5,), "max_retries": 4},
        "*": {"retry_jitter": 0.1},
    }

    task = app.task(name="shop.mail", shared=False)(nothing)
    app.finalize()

    assert policy_of_task(app.tasks[task.name], {}) == RetryPolicy((5,), 4, 0.1)


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


@pytest.mark.parametrize(
    "options",
    [
        *({"retry_intervals": wrong} for wrong in ((), -1, "15 s", True)),
        *({"retry_intervals": 1, "max_retries": wrong} for wrong in (-1, "3")),
        {"retry_intervals": 1, "retry_jitter": 2},
        {"retry_intervals": 1, "dont_retry_for": (5,)},
        {"retry_for": "OSError"},
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
    assert policies_by_pattern(None) == {}
    assert policies_by_pattern({}) == {}
    assert policies_by_pattern(TEN_RETRIES) == {"*": TEN_RETRIES}
    assert policies_by_pattern((1, 2)) == {"*": RetryPolicy((1, 2))}
    assert policies_by_pattern({"a.*": 5, "b.?": TEN_RETRIES}) == {
        "a.*": RetryPolicy(5),
        "b.?": TEN_RETRIES,
    }


@pytest.mark.parametrize("given", [{"": 1}, {5: 1}, {None: 1}, {"a": -1}, {"a": ()}, -1, (), "x"])
def test_defaults_that_are_none_are_refused_when_the_extension_is_made(given: Any) -> None:
    with pytest.raises(InvalidRetry, match="retry"):
        DelayQ(retry=given)


def test_patterns_that_match_nothing_are_found() -> None:
    defaults = policies_by_pattern({"shop.*": 1, "shoo.*": 1, "celery.*": 1, "*": 1})

    assert unmatched_patterns(defaults, ["shop.mail", "celery.chord"]) == ["shoo.*", "celery.*"]
    assert unmatched_patterns(policies_by_pattern(5), ["celery.chord"]) == ["*"]


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
    assert property_of_call("shop.mail", options) == own


def test_no_jitter_may_be_asked_for_by_a_call_of_a_task_that_has_some() -> None:
    own = property_of_call("shop.mail", {"retry_jitter": False})["retry"]

    assert RetryPolicy((1, 2), jitter=0.5).with_property(own) == RetryPolicy((1, 2))


WRONG: dict[str, list[Any]] = {
    "retry_intervals": [double, (), -1, math.nan, "15", True, {"a": 1}],
    "max_retries": [-1, 1.0, True],
    "retry_jitter": [1.5, "much"],
    "retry_budget": [-1, 1.5, True, "3", MAX_BUDGET + 1],
    # Options of a task only.
    **{"retry_for": [(ValueError,)], "dont_retry_for": [(ValueError,)]},
    **{"false_is_failure": [True], "dead_letter": [False]},
}


@pytest.mark.parametrize(
    ("name", "given"), [(name, given) for name, some in WRONG.items() for given in some]
)
def test_a_call_whose_options_are_none_is_refused_with_their_name(name: str, given: Any) -> None:
    with pytest.raises(InvalidRetry, match=rf"^shop\.mail: {name}"):
        property_of_call("shop.mail", {name: given})
