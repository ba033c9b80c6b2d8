"""Retry policies: when and how often a failed task is retried.

Celery's ``Task.retry`` sends the retry, so events, signals and ``request.retries`` do not change.
"""

from __future__ import annotations

import logging
import random
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from celery.app.task import Task

from celery_delayq.errors import InvalidRetry
from celery_delayq.utils.numbers import is_finite, is_integer

logger = logging.getLogger(__name__)

#: Longest wait, in seconds: ten years.
MAX_WAIT_SECONDS = 315_360_000.0

#: Most steps of a list: the last one is repeated anyway.
MAX_STEPS = 1000


@dataclass(frozen=True, slots=True)
class Exponential:
    """Waits that grow: ``first``, ``first * factor``, ``first * factor**2`` …, at most ``longest``.

    Parameters
    ----------
    first, longest : float
        Seconds.
    factor : float
        At least 1.
    """

    first: float = 1.0
    factor: float = 2.0
    longest: float = 3600.0

    def __post_init__(self) -> None:
        _seconds("Exponential(first=…)", self.first)
        _seconds("Exponential(longest=…)", self.longest)
        factor = self.factor
        if not is_finite(factor, 1, 1000):
            raise InvalidRetry(f"Exponential(factor={factor!r}): expected a number from 1 to 1000")

    def __call__(self, retries: int) -> float:
        """Return the wait after *retries* retries, in seconds."""
        try:
            return min(self.longest, self.first * float(self.factor) ** retries)
        except OverflowError:
            return self.longest if self.first else 0.0


#: Values of ``retry_intervals``: the wait of each retry in seconds, one wait for all retries, or a
#: function of the number of retries so far.
Intervals = Sequence[float] | float | timedelta | Exponential | Callable[[int], float]

#: Waits in seconds: 15 s, 3 min, 10 min, twice 30 min, 1 h, 2 h, 6 h and 15 h.
STEPPED: tuple[float, ...] = (15, 180, 600, 1800, 1800, 3600, 7200, 21_600, 54_000)


class _Unset:
    """The value of an option that was not given; None has another meaning."""

    def __repr__(self) -> str:
        return "not given"


UNSET = _Unset()


@dataclass(frozen=True)
class RetryPolicy:
    """When a failed task is retried.

    Parameters
    ----------
    intervals : Sequence[float] | float | timedelta | Exponential | Callable[[int], float]
        The wait before each retry, in seconds from the failure. If ``max_retries`` allows more
        retries than the list has waits, the last wait is repeated. A function gets the number of
        retries so far.
    max_retries : int | None
        Most retries; None for no limit. The default is the length of a list, or else Celery's
        default of 3.
    jitter : float
        The random part of each wait, from 0 to 1: with 0.2 a wait is 80 to 100 % of its interval,
        with 1 any part of the interval, as in Celery's backoff.
    retry_for : tuple[type[BaseException], ...]
        Exceptions after which the task is retried.
    dont_retry_for : tuple[type[BaseException], ...]
        Exceptions after which the task is not retried, even if ``retry_for`` or Celery's
        ``autoretry_for`` names them.

    Raises
    ------
    InvalidRetry
        A value is negative, no number, empty or no exception class.
    """

    intervals: Any = 180.0
    max_retries: Any = UNSET
    jitter: float = 0.0
    retry_for: tuple[type[BaseException], ...] = (Exception,)
    dont_retry_for: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "intervals", _intervals(self.intervals))
        object.__setattr__(self, "jitter", _jitter(self.jitter))
        for name in ("retry_for", "dont_retry_for"):
            object.__setattr__(self, name, exception_classes(name, getattr(self, name)))
        most = self.max_retries
        if not (most in (None, UNSET) or is_integer(most, 0)):
            raise InvalidRetry(f"max_retries={most!r}: expected 0 or more, or None for no limit")

    @property
    def limit(self) -> int | None:
        """Most retries; None for no limit."""
        if self.max_retries is not UNSET:
            limit: int | None = self.max_retries
            return limit
        return len(self.intervals) if isinstance(self.intervals, tuple) else Task.max_retries

    def covers(self, exc: BaseException) -> bool:
        """Return whether a task that failed with *exc* is retried."""
        return isinstance(exc, self.retry_for) and not isinstance(exc, self.dont_retry_for)

    def wait(self, retries: int) -> float:
        """Return the wait after *retries* retries, in seconds, with jitter.

        If a function of the policy fails or returns no number of seconds, the error is logged and
        the wait is Celery's default.
        """
        intervals = self.intervals
        if isinstance(intervals, tuple):
            seconds = intervals[min(retries, len(intervals) - 1)]
        elif callable(intervals):
            try:
                seconds = _seconds("retry_intervals", intervals(retries))
            except Exception:
                logger.exception(
                    "retry_intervals=%r failed after %d retries; the wait is %s s",
                    intervals,
                    retries,
                    Task.default_retry_delay,
                )
                seconds = float(Task.default_retry_delay)
        else:
            seconds = intervals
        part = random.uniform(0, self.jitter) if self.jitter else 0.0
        return float(seconds) * (1 - part)

    def as_property(self) -> dict[str, Any]:
        """Return the policy in JSON types, for our own data in a message."""
        own: dict[str, Any] = {}
        intervals = self.intervals
        if isinstance(intervals, Exponential):
            own["exponential"] = [intervals.first, intervals.factor, intervals.longest]
        elif isinstance(intervals, tuple):
            own["intervals"] = [*intervals]
        else:
            own["intervals"] = intervals
        if self.max_retries is not UNSET:
            own["max"] = self.max_retries
        if self.jitter:
            own["jitter"] = self.jitter
        return own

    def with_property(self, own: Mapping[str, Any]) -> RetryPolicy:
        """Return this policy with the values of a message.

        Raises
        ------
        InvalidRetry
            The values were not written by :meth:`as_property`.
        """
        if not isinstance(own, Mapping):
            raise InvalidRetry(f"a message has {own!r} for a policy")
        given: dict[str, Any] = {}
        if "exponential" in own:
            try:
                given["intervals"] = Exponential(*own["exponential"])
            except TypeError as exc:
                raise InvalidRetry(f"a message has {own!r} for a policy") from exc
        elif "intervals" in own:
            given["intervals"] = own["intervals"]
        if given:
            given["max_retries"] = UNSET  # the limit of the task belongs to its own intervals
        for name, field in (("max", "max_retries"), ("jitter", "jitter")):
            if name in own:
                given[field] = own[name]
        return replace(self, **given)


def _intervals(given: Any) -> Any:
    if isinstance(given, Exponential) or callable(given):
        return given
    if isinstance(given, (str, bytes, Mapping)):
        raise InvalidRetry(f"retry_intervals={given!r}: {_FORMS_TEXT}")
    if isinstance(given, Iterable):
        try:
            steps = tuple(_seconds("step", step) for step in given)
        except InvalidRetry as exc:
            raise InvalidRetry(f"retry_intervals={reprlib.repr(given)}: {exc}") from None
        if not steps:
            raise InvalidRetry(f"retry_intervals={given!r} is empty: {_FORMS_TEXT}")
        if len(steps) > MAX_STEPS:
            raise InvalidRetry(
                f"retry_intervals has {len(steps):,} steps, at most {MAX_STEPS:,} are allowed: "
                "the last one is repeated as often as max_retries says"
            )
        return steps
    return _seconds("retry_intervals", given)


_FORMS_TEXT = (
    "expected seconds for each retry, such as (15, 180, 600), one number of seconds for all of "
    "them, Exponential(…) or a function of the number of retries; False for none"
)


def _seconds(name: str, given: Any) -> float:
    seconds = given.total_seconds() if isinstance(given, timedelta) else given
    if not is_finite(seconds, 0, MAX_WAIT_SECONDS):
        raise InvalidRetry(
            f"{name} {given!r}: expected a timedelta or a number of seconds from 0 to "
            f"{MAX_WAIT_SECONDS:.0f}"
        )
    return float(seconds)


def _jitter(given: Any) -> float:
    if not (given in (True, False) or is_finite(given, 0, 1)):
        raise InvalidRetry(f"retry_jitter={given!r}: expected a number from 0 to 1")
    return float(given)


def exception_classes(name: str, given: Any) -> tuple[type[BaseException], ...]:
    kinds = given if isinstance(given, (tuple, list, set, frozenset)) else (given,)
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise InvalidRetry(f"{name}={given!r}: expected exception classes")
    return tuple(kinds)


#: A policy for apps: ten retries with growing waits, from 15 s to one hour.
TEN_RETRIES = RetryPolicy(Exponential(15, 2, 3600), max_retries=10)
