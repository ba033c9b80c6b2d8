"""The retry policy of a task: by the options of the call, else of the task, else of the app."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from celery.app.task import Task

from celery_delayq.errors import InvalidRetry
from celery_delayq.model.retry_policy import UNSET, Exponential, RetryPolicy, exception_classes
from celery_delayq.utils.numbers import is_whole

#: The names of our options of one call; a task has these and the names of exceptions beside.
OPTIONS = ("retry_intervals", "max_retries", "retry_jitter", "retry_budget")

#: Our options that only a task can have.
TASK_OPTIONS = frozenset({"retry_for", "dont_retry_for", "false_is_failure", "dead_letter"})

#: Most retries of all members of one canvas.
MAX_BUDGET = 1_000_000


def policy_of_task(task: Any, defaults: Mapping[str, RetryPolicy]) -> RetryPolicy | None:
    """Return the policy of a task by its own options or by its name, or None.

    Parameters
    ----------
    defaults : Mapping[str, RetryPolicy]
        The policy of an app for the names that match a pattern; the first that matches counts. Not
        for tasks with ``autoretry_for``, which say themselves how they are retried.

    Raises
    ------
    InvalidRetry
        The task's options are no policy.
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
            default = next(
                (each for name, each in defaults.items() if fnmatchcase(task.name, name)), None
            )
            if default is None:
                return None
            policy = replace(default, **given)
        dont_autoretry = tuple(getattr(task, "dont_autoretry_for", None) or ())
        return replace(policy, dont_retry_for=policy.dont_retry_for + dont_autoretry)
    except InvalidRetry as exc:
        raise InvalidRetry(f"task {task.name}: {exc}") from exc


def _options_of(task: Any) -> dict[str, Any]:
    """Return a task's own options, by the fields of a policy."""
    names = {
        "intervals": "retry_intervals",
        "jitter": "retry_jitter",
        "retry_for": "retry_for",
        "dont_retry_for": "dont_retry_for",
    }
    found = {field: getattr(task, name, None) for field, name in names.items()}
    given = {field: value for field, value in found.items() if value is not None}
    if "intervals" in given:
        given["intervals"] = _intervals_as_given(task, given["intervals"])
    if "dont_retry_for" in given:
        given["dont_retry_for"] = dont_retry_exceptions(task)
    max_retries = _own_max_retries(task)
    if max_retries is not UNSET:
        given["max_retries"] = max_retries
    return given


def _intervals_as_given(task: Any, intervals: Any) -> Any:
    """Return a function that was an option of ``@app.task`` as it was given, not as a method."""
    if getattr(intervals, "__self__", None) is not task:
        return intervals
    kind = next(kind for kind in type(task).__mro__ if "retry_intervals" in vars(kind))
    # Celery makes a class of a decorated function; in others it is a method.
    return intervals.__func__ if "_decorated" in vars(kind) else intervals


def dont_retry_exceptions(task: Any) -> tuple[type[BaseException], ...]:
    """Return the exceptions after which neither the policy nor Celery's ``autoretry_for`` retries;
    ``self.retry()`` still does.

    Raises
    ------
    InvalidRetry
        The task names something else.
    """
    refused = getattr(task, "dont_retry_for", None)
    return () if refused is None else exception_classes("dont_retry_for", refused)


def property_of_call(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the message property for the options of a call.

    Raises
    ------
    InvalidRetry
        They are no policy, or one that no message can carry.
    """
    if wrong := given.keys() & TASK_OPTIONS:
        raise InvalidRetry(
            f"{name}: {', '.join(sorted(wrong))} can be given to a task only, not to one call"
        )
    own: dict[str, Any] = {}
    try:
        budget = given.get("retry_budget")
        if budget is not None:
            if not is_whole(budget, 0, MAX_BUDGET):
                raise InvalidRetry(
                    f"retry_budget={budget!r}: expected a number of retries, 0 to {MAX_BUDGET:,}"
                )
            own["budget"] = budget
        found = {option: given[option] for option in OPTIONS[:3] if given.get(option) is not None}
        if "max_retries" in given:
            found["max_retries"] = given["max_retries"]  # None is for ever
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
    if "retry_jitter" in found:  # also none, where the task has some
        own["retry"]["jitter"] = policy.jitter
    return own


def policies_by_pattern(given: Any) -> dict[str, RetryPolicy]:
    """Return an app's policies by pattern of task names.

    Parameters
    ----------
    given : None | RetryPolicy | Intervals | Mapping[str, RetryPolicy | Intervals]
        One for all tasks, or for the names that match a pattern such as ``"shop.mail.*"``.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        given = {"*": given}
    policies = {}
    for pattern, policy in given.items():
        if not isinstance(pattern, str) or not pattern:
            raise InvalidRetry(
                f"retry={{{pattern!r}: …}}: expected a pattern such as 'shop.mail.*'"
            )
        try:
            policies[pattern] = policy if isinstance(policy, RetryPolicy) else RetryPolicy(policy)
        except InvalidRetry as exc:
            raise InvalidRetry(f"retry={{{pattern!r}: …}}: {exc}") from exc
    return policies


def unmatched_patterns(defaults: Mapping[str, RetryPolicy], names: Iterable[str]) -> list[str]:
    """Return the patterns that match none of the names of an app's tasks."""
    names = [name for name in names if not name.startswith("celery.")]
    return [each for each in defaults if not any(fnmatchcase(name, each) for name in names)]


def _own_max_retries(task: Any) -> Any:
    """Return the limit that a task was given, UNSET for Celery's own default."""
    for holder in (task, *type(task).__mro__):
        if holder is Task:
            break
        if "max_retries" in vars(holder):
            return vars(holder)["max_retries"]
    return UNSET
