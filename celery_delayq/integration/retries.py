"""Retries of failed tasks: Celery's own ``Task.retry``, with waits and limits of a policy.

Tasks keep their classes. Their ``run`` and ``retry`` are wrapped, as Celery does for
``autoretry_for``, when the app knows all its tasks.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Mapping
from functools import partial
from types import MethodType
from typing import Any

from celery import Celery
from celery.app.task import Context
from celery.exceptions import Ignore, Reject
from celery.exceptions import Retry as Retrying

from celery_delayq.errors import InvalidRetry, TaskReturnedFalse
from celery_delayq.model.canvas import without_chord
from celery_delayq.model.envelope import own_of
from celery_delayq.model.names import unmatched_patterns
from celery_delayq.model.retries import options as retry_options
from celery_delayq.model.retries.policy import RetryPolicy
from celery_delayq.settings import Settings

logger = logging.getLogger(__name__)

#: Exceptions that end an attempt but are no failures.
_CONTROL_EXCEPTIONS = (Ignore, Reject, Retrying)

#: Seconds for which the count of a budget is kept after the last retry.
BUDGET_EXPIRY_SECONDS = 30 * 86_400


def prepare(app: Celery, tasks: Mapping[str, Any], defaults: Mapping[str, RetryPolicy]) -> None:
    """Read the retry options of *tasks*. A second call changes nothing.

    Raises
    ------
    InvalidRetry
        The options of a task are invalid.
    """
    wrong: InvalidRetry | None = None
    for task in tasks.values():
        if is_unread(task):
            try:
                task._delayq_attempts = Attempts(
                    app, task, retry_options.policy_of_task(task, defaults)
                )
            except InvalidRetry as exc:
                wrong = wrong or exc
    # Outside workers Celery only logs this error. The other tasks then have their policies.
    if wrong is not None:
        raise wrong


def is_unread(task: Any) -> bool:
    """Whether the retry options of a task are still to be read. Celery's own tasks have none."""
    is_celerys = task.name.startswith("celery.")
    return not is_celerys and attempts_of(task) is None


def attempts_of(task: Any) -> Attempts | None:
    """Return the attempts of a task, or None if its options were not read or are invalid."""
    found: Attempts | None = vars(task).get("_delayq_attempts")
    return found


def warn_of_unmatched(option: str, values: Mapping[str, Any], tasks: Mapping[str, Any]) -> None:
    """Warn of patterns that match no task, which are probably misspelt."""
    for pattern in unmatched_patterns(values, tasks):
        logger.warning("DelayQ(%s={%r: …}) matches no task of this app", option, pattern)


class Attempts:
    """The attempts of one task.

    Parameters
    ----------
    policy : RetryPolicy | None
        The policy of the task. A message may have its own policy.
    """

    def __init__(self, app: Celery, task: Any, policy: RetryPolicy | None) -> None:
        self._app = app
        self._task = task
        self._policy = policy
        also = tuple(getattr(task, "dont_autoretry_for", None) or ())
        self._refused = retry_options.dont_retry_exceptions(task) + also
        self._retry: Callable[..., Any] = task.retry

    def policy_of(self, request: Context) -> RetryPolicy | None:
        """Return the policy for the attempt of *request*."""
        given = own_of(request.get("properties")).get("retry")
        if given is None:
            return self._policy
        if isinstance(given, dict) and given.get("intervals") is False:
            return None
        try:
            policy = self._policy
            if policy is None:
                # A limit without intervals applies only to retries that the task requests.
                own = _has_intervals(given)
                policy = RetryPolicy(
                    float(self._task.default_retry_delay),
                    retry_for=(Exception,) if own else (),
                    dont_retry_for=self._refused,
                )
            return policy.with_property(given)
        except InvalidRetry as exc:
            logger.error(
                "Task %s[%r] has no policy of its own: %s", self._task.name, request.id, exc
            )
            return self._policy

    def retry(
        self,
        args: Any = None,
        kwargs: Any = None,
        exc: BaseException | None = None,
        throw: bool = True,
        eta: Any = None,
        countdown: Any = None,
        max_retries: int | None = None,
        **options: Any,
    ) -> Any:
        """Replace ``Task.retry``. The policy gives the wait and the limit if the call has none."""
        task = self._task
        request = task.request
        policy = None if request.called_directly else self.policy_of(request)
        failure: BaseException | None = getattr(request, "delayq_failure", None)
        if failure is not None and failure is exc:
            # The caller is Celery's wrapper for `autoretry_for`.
            if isinstance(exc, self._refused) or getattr(request, "delayq_gave_up", False):
                raise failure
            countdown, max_retries = self._wait_and_limit_of_wrapper(request, policy, countdown)
        else:
            request.delayq_limit = max_retries
        if not throw:
            request.delayq_gave_up = True  # a later failure needs no retry: one is being sent
        if policy is not None:
            limit = policy.limit if max_retries is None else max_retries
            # For Celery, None means its own limit, not "no limit".
            max_retries = sys.maxsize if limit is None else limit
            if request.retries >= max_retries or not self._has_budget(request):
                request.delayq_gave_up = True
                max_retries = min(max_retries, request.retries)
            elif eta is None and countdown is None:
                countdown = policy.wait(request.retries)
        try:
            return self._retry(
                args,
                kwargs,
                exc=exc,
                throw=throw,
                eta=eta,
                countdown=countdown,
                max_retries=max_retries,
                **options,
            )
        finally:
            if policy is not None:
                # Celery stores it on the task, where it would apply to other messages.
                vars(task).pop("override_max_retries", None)

    def _wait_and_limit_of_wrapper(
        self, request: Context, policy: RetryPolicy | None, countdown: Any
    ) -> tuple[Any, int | None]:
        """Return wait and limit for a retry by Celery's wrapper; None means the policy's value.

        Options of the call override options of the task for Celery. The wrapper's own limit is not
        used: it may belong to another message that runs in another thread.
        """
        limit = getattr(request, "delayq_limit", None)
        if limit is None:
            limit = (getattr(self._task, "retry_kwargs", None) or {}).get("max_retries")
        given = own_of(request.get("properties")).get("retry")
        if policy is not None and _has_intervals(given):
            return None, None
        if policy is not None and isinstance(given, Mapping) and "max" in given:
            limit = None
        return countdown, limit

    def becomes_dead_letter(self, request: Context) -> bool:
        """Return whether a failed task becomes a dead letter, which can be replayed."""
        # A message that is not leased has no queue of ours.
        if "queue" not in own_of(request.get("properties")) or not getattr(
            self._task, "dead_letter", True
        ):
            return False
        return Settings.from_options(self._app.conf.broker_transport_options).dead_letters

    def _has_budget(self, request: Context) -> bool:
        """Return whether the budget of a task's canvas allows another retry."""
        given = own_of(request.get("properties")).get("budget")
        if given is None:
            return True
        try:
            name, most = given
            store = self._app._delayq.session.stores.of(str(name))
            member = f"{request.id} {request.retries}"
            return bool(
                store.control.use_retry_budget(str(name), int(most), member, BUDGET_EXPIRY_SECONDS)
            )
        except Exception:
            # One retry too many is better than one too few.
            logger.exception("The budget of retries %r of task %r is unknown", given, request.id)
            return True


class _RecordedAttempt:
    """Records a failure of the function that runs a task.

    Parameters
    ----------
    task : Task
        The task. Its request is the request of the running attempt.
    """

    def __init__(self, task: Any) -> None:
        self.task = task
        self.request = task.request

    def __enter__(self) -> Callable[[Any], Any]:
        return self.judge

    def judge(self, result: Any) -> Any:
        """Return a result. Raise an error if the result is a failure (``false_is_failure``)."""
        task = self.task
        if (
            result is False
            and getattr(task, "false_is_failure", False)
            and not self.request.called_directly
        ):
            raise TaskReturnedFalse(f"{task.name} returned False")
        return result

    def __exit__(self, _kind: Any, exc: BaseException | None, _traceback: Any) -> None:
        if isinstance(exc, Exception) and not isinstance(exc, _CONTROL_EXCEPTIONS):
            self.request.delayq_failure = exc


class _RetriedAttempt(_RecordedAttempt):
    """An attempt of a task: retries a failure, or handles the last failure."""

    def __exit__(self, _kind: Any, exc: BaseException | None, _traceback: Any) -> None:
        request = self.request
        try:
            if isinstance(exc, Exception) and not isinstance(exc, _CONTROL_EXCEPTIONS):
                self._fail(request, exc)
        finally:
            request.delayq_failure = None  # its traceback refers back to this frame

    def _fail(self, request: Context, exc: Exception) -> None:
        """Retry, or keep the chord waiting if the last failure becomes a dead letter."""
        if request.called_directly:
            return
        attempts: Attempts = self.task._delayq_attempts
        policy = attempts.policy_of(request)
        if policy is None:
            return
        if not getattr(request, "delayq_gave_up", False) and policy.covers(exc):
            request.delayq_failure = None
            try:
                raise self.task.retry(exc=exc)
            except _CONTROL_EXCEPTIONS:
                raise
            except BaseException as last:
                if last is not exc:
                    raise
        if attempts.becomes_dead_letter(request):
            hold_chord(request)


def record_failures(task: Any, run: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the function that runs the task: record its failures.

    Celery's own wrapper for ``autoretry_for`` calls this function as ``Task._orig_run``.
    """
    return _inside(run, partial(_RecordedAttempt, task))


def retry_failures(task: Any, run: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``Task.run``, one attempt: retry a failure, or handle the last failure."""
    return _inside(run, partial(_RetriedAttempt, task))


def _inside(run: Callable[..., Any], attempt: Callable[[], _RecordedAttempt]) -> Callable[..., Any]:
    """Return a function of the same kind that runs *run* inside an attempt.

    Other pools and tasks use ``inspect`` to decide whether to await the result of a task.
    """
    if inspect.ismethod(run):
        return MethodType(_inside(run.__func__, attempt), run.__self__)
    called: Callable[..., Any]
    if inspect.iscoroutinefunction(run):

        async def called(*args: Any, **kwargs: Any) -> Any:
            with attempt() as judge:
                return judge(await run(*args, **kwargs))

    elif inspect.isasyncgenfunction(run):

        async def called(*args: Any, **kwargs: Any) -> Any:
            with attempt():
                async for each in run(*args, **kwargs):
                    yield each

    elif inspect.isgeneratorfunction(run):

        def called(*args: Any, **kwargs: Any) -> Any:
            with attempt() as judge:
                return judge((yield from run(*args, **kwargs)))

    else:

        def called(*args: Any, **kwargs: Any) -> Any:
            with attempt() as judge:
                return judge(run(*args, **kwargs))

    return called


def apply_policy(task: Any, _stock: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``Task.retry``."""
    attempts: Attempts = task._delayq_attempts

    def retry(*args: Any, **kwargs: Any) -> Any:
        return attempts.retry(*args, **kwargs)

    return retry


def log_handler_errors(_task: Any, handler: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``Task.on_retry`` or ``Task.on_failure``: errors are logged."""

    def handle(*args: Any, **kwargs: Any) -> None:
        try:
            handler(*args, **kwargs)
        except Exception:
            logger.exception("%s has failed", getattr(handler, "__qualname__", handler))

    return handle


def _has_intervals(given: Any) -> bool:
    """Return whether a policy defines the waits."""
    return isinstance(given, Mapping) and ("intervals" in given or "exponential" in given)


def hold_chord(request: Context) -> None:
    """Have the chord of a failed task wait, because the task becomes a dead letter.

    The chord continues if the dead letter is replayed, and fails if the dead letter is purged.
    """
    request.chord = None
    chain = request.chain
    if isinstance(chain, (list, tuple)):
        request.chain = [without_chord(each) for each in chain]
