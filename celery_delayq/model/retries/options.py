"""Retry options: a policy from options of the call, of the task, or of the app, in this order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from celery.app.task import Task

from celery_delayq.errors import InvalidRetry
from celery_delayq.model.arguments.functions import option_of
from celery_delayq.model.names import first_match, values_by_pattern
from celery_delayq.model.retries.policy import UNSET, Exponential, RetryPolicy, exception_classes
from celery_delayq.utils.numbers import is_integer

#: Options of a call. A task has these too, and :data:`TASK_OPTIONS`.
OPTIONS = ("retry_intervals", "max_retries", "retry_jitter", "retry_budget")

#: Our options that only a task can have.
TASK_OPTIONS = frozenset({"retry_for", "dont_retry_for", "false_is_failure", "dead_letter"})

#: Most retries of all members of one canvas.
MAX_BUDGET = 1_000_000


def policy_of_task(task: Any, defaults: Mapping[str, RetryPolicy]) -> RetryPolicy | None:
    """Return the policy of a task, from its own options or from its name; None without a policy.

    Parameters
    ----------
    defaults : Mapping[str, RetryPolicy]
        The policies of the app by a pattern of task names; the first pattern that matches counts.
        Tasks with ``autoretry_for`` get none of them: Celery retries these tasks.

    Raises
    ------
    InvalidRetry
        The options of the task make no policy.
    """
    try:
        given = _options_of(task)
        intervals = given.pop("intervals", None)
        if intervals is False:
            return None
        if intervals is not None or "retry_for" in given:
            if intervals is None:
                intervals = float(task.default_retry_delay)
            policy = RetryPolicy(intervals, **given)
        elif getattr(task, "autoretry_for", None):
            return None
        else:
            default = first_match(defaults, task.name)
            if default is None:
                return None
            policy = replace(default, **given)
        dont_autoretry = tuple(getattr(task, "dont_autoretry_for", None) or ())
        return replace(policy, dont_retry_for=policy.dont_retry_for + dont_autoretry)
    except InvalidRetry as exc:
        raise InvalidRetry(f"task {task.name}: {exc}") from exc


def _options_of(task: Any) -> dict[str, Any]:
    """Return the options that a task sets itself, by the field of the policy."""
    names = {
        "intervals": "retry_intervals",
        "jitter": "retry_jitter",
        "retry_for": "retry_for",
        "dont_retry_for": "dont_retry_for",
    }
    found = {field: option_of(task, name) for field, name in names.items()}
    given = {field: value for field, value in found.items() if value is not None}
    if "dont_retry_for" in given:
        given["dont_retry_for"] = dont_retry_exceptions(task)
    max_retries = _own_max_retries(task)
    if max_retries is not UNSET:
        given["max_retries"] = max_retries
    return given


def dont_retry_exceptions(task: Any) -> tuple[type[BaseException], ...]:
    """Return the exceptions after which neither the policy nor ``autoretry_for`` retries a task.

    ``self.retry()`` retries the task even then.

    Raises
    ------
    InvalidRetry
        The option holds something other than exception classes.
    """
    refused = getattr(task, "dont_retry_for", None)
    return () if refused is None else exception_classes("dont_retry_for", refused)


def property_of_call(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return our own data for a message from the retry options of a call.

    Raises
    ------
    InvalidRetry
        The options make no policy, or a policy that a message cannot carry.
    """
    if wrong := given.keys() & TASK_OPTIONS:
        raise InvalidRetry(
            f"{name}: {', '.join(sorted(wrong))} can be given to a task only, not to one call"
        )
    own: dict[str, Any] = {}
    try:
        budget = given.get("retry_budget")
        if budget is not None:
            if not is_integer(budget, 0, MAX_BUDGET):
                raise InvalidRetry(
                    f"retry_budget={budget!r}: expected a number of retries, 0 to {MAX_BUDGET:,}"
                )
            own["budget"] = budget
        found = {option: given[option] for option in OPTIONS[:3] if given.get(option) is not None}
        if "max_retries" in given:
            found["max_retries"] = given["max_retries"]  # None means no limit
        if not found:
            return own
        intervals = found.get("retry_intervals", 1)
        if intervals is False:
            own["retry"] = {"intervals": False}
            return own
        if callable(intervals) and not isinstance(intervals, Exponential):
            raise InvalidRetry(
                f"retry_intervals={intervals!r}: a message cannot carry a function; give it to the "
                "task, or a list, a number of seconds or Exponential(…) to the call"
            )
        policy = RetryPolicy(
            intervals, found.get("max_retries", UNSET), found.get("retry_jitter", 0.0)
        )
    except InvalidRetry as exc:
        raise InvalidRetry(f"{name}: {exc}") from exc
    own["retry"] = policy.as_property()
    if "retry_intervals" not in found:
        own["retry"].pop("intervals")
    if "retry_jitter" in found:  # 0 too: the task may have a jitter
        own["retry"]["jitter"] = policy.jitter
    return own


def policies_by_pattern(given: Any) -> dict[str, RetryPolicy]:
    """Return the policies of an app by pattern of task names.

    Parameters
    ----------
    given : None | RetryPolicy | Intervals | Mapping[str, RetryPolicy | Intervals]
        One policy for all tasks, or policies by a pattern such as ``"shop.mail.*"``.

    Raises
    ------
    InvalidRetry
        A pattern or a policy is invalid.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        given = {"*": given}
    return values_by_pattern("retry", given, _policy, InvalidRetry)


def _policy(given: Any) -> RetryPolicy:
    return given if isinstance(given, RetryPolicy) else RetryPolicy(given)


def _own_max_retries(task: Any) -> Any:
    """Return ``max_retries`` of a task or its classes; UNSET if only Celery's default is set."""
    for holder in (task, *type(task).__mro__):
        if holder is Task:
            break
        if "max_retries" in vars(holder):
            return vars(holder)["max_retries"]
    return UNSET
