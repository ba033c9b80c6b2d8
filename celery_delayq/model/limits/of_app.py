"""Which tasks of an app have which limit. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from celery import Celery

from celery_delayq.errors import InvalidLimit
from celery_delayq.model.limits import LIMIT_OPTION, Limit, key_template
from celery_delayq.model.names import first_match, values_by_pattern
from celery_delayq.utils.text import percent

#: The attribute of an app with its :class:`AppLimits`.
_LIMITS = "_delayq_limits"

#: Most names of tasks whose pattern is remembered.
_MAX_NAMES = 10_000


class LimitedTask(NamedTuple):
    """A task with a limit; *task* is None if this app does not know the task."""

    name: str
    task: Any
    limit: Limit

    def lane_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return the lane of a call; raises the errors of :meth:`Limit.lane_of`."""
        return self.limit.lane_of(self.name, self.task, args, kwargs)

    @property
    def lacks_late_acks(self) -> bool:
        """Whether the limit cannot hold, since the task acknowledges before it runs."""
        task = self.task
        return self.limit.concurrency is not None and task is not None and not task.acks_late

    def late_acks_text(self) -> str:
        """Return what is wrong if the task :attr:`lacks_late_acks`, and what to set."""
        return (
            f"task {self.name} acknowledges when it starts, so concurrency="
            f"{self.limit.concurrency} of Limit({self.limit.name!r}) cannot hold; set "
            "acks_late=True at the task, or DelayQ(app, at_least_once=True)"
        )

    def key_problem(self) -> str | None:
        """Return why the key can be computed for no call of the task; None if it can."""
        return key_template(self.limit).problem(self.name, self.task)

    def check(self) -> LimitedTask:
        """Return this; raises InvalidLimit if the task :attr:`lacks_late_acks`."""
        if self.lacks_late_acks:
            raise InvalidLimit(self.late_acks_text())
        return self


class AppLimits:
    """The limits of an app: by a pattern of task names, and of tasks themselves.

    Parameters
    ----------
    by_pattern : Mapping[str, Limit] | None
        Limits by a pattern such as ``"shop.mail.*"``; the first pattern that matches counts.

    Raises
    ------
    InvalidLimit
        A pattern or a limit is invalid, or two limits have one name and different definitions.
    """

    def __init__(self, by_pattern: Mapping[str, Limit] | None = None) -> None:
        if by_pattern is None:
            by_pattern = {}
        if not isinstance(by_pattern, Mapping):
            raise InvalidLimit(
                f"limits={by_pattern!r}: expected limits by a pattern of task names, such as "
                "{'shop.mail.*': Limit('mail', rate='100/m')}"
            )
        #: The limits by pattern. Without any, only tasks themselves have limits.
        self.by_pattern = values_by_pattern("limits", by_pattern, _checked, InvalidLimit)
        self._first: dict[str, tuple[str, Limit]] = {}
        self._by_name: dict[str, Limit | None] = {}
        for pattern, limit in self.by_pattern.items():
            self._note(f"limits={{{pattern!r}: …}}", limit)

    def of(self, name: str, task: Any) -> LimitedTask | None:
        """Return a task with its limit; None without a limit. The task's own limit wins.

        Parameters
        ----------
        task : Any
            The task; None if this app does not know the task. ``limit=False`` of a task means no
            limit, even if a pattern matches.

        Raises
        ------
        InvalidLimit
            The task's limit is no ``Limit``, or another limit of its name has another definition.
        """
        limit = getattr(task, LIMIT_OPTION, None)
        if limit is False:
            return None
        # A method is one of the user's own class.
        if limit is None or (callable(limit) and not isinstance(limit, type)):
            limit = self._by_pattern_of(name) if self.by_pattern else None
            return None if limit is None else LimitedTask(name, task, limit)
        where = f"task {name}"
        try:
            self._note(where, _checked(limit))
        except InvalidLimit as exc:
            raise InvalidLimit(f"{where}: {exc}") from None
        return LimitedTask(name, task, limit)

    def of_tasks(self, tasks: Mapping[str, Any]) -> dict[str, LimitedTask]:
        """Return the tasks with limits, by the tasks' names; raises the errors of :meth:`of`."""
        found = {name: self.of(name, task) for name, task in tasks.items()}
        return {name: limited for name, limited in found.items() if limited is not None}

    def definitions(self, tasks: Mapping[str, Any]) -> dict[str, str]:
        """Return the definitions for Redis, by the percent-encoded names of the limits.

        Raises the errors of :meth:`of`.
        """
        limits = [each.limit for each in self.of_tasks(tasks).values()]
        limits += self.by_pattern.values()
        return {percent(limit.name): limit.definition.text for limit in limits}

    def share(self, app: Celery) -> None:
        """Make these the limits of *app*."""
        setattr(app, _LIMITS, self)

    def _by_pattern_of(self, name: str) -> Limit | None:
        """Return the limit by pattern. Celery's own tasks have none."""
        known = self._by_name
        if name not in known:
            if len(known) >= _MAX_NAMES:
                known.clear()
            own = name.startswith("celery.")
            known[name] = None if own else first_match(self.by_pattern, name)
        return known.get(name)

    def _note(self, where: str, limit: Limit) -> None:
        first, known = self._first.setdefault(limit.name, (where, limit))
        if known.definition != limit.definition:
            raise InvalidLimit(
                f"two limits have the name {limit.name!r}: {known!r} of {first}, and {limit!r} of "
                f"{where}; give one of them another name"
            )


def limits_of(app: Celery) -> AppLimits:
    """Return the limits of an app."""
    found: AppLimits | None = getattr(app, _LIMITS, None)
    if found is None:
        found = AppLimits()
        found.share(app)
    return found


def _checked(limit: Any) -> Limit:
    if not isinstance(limit, Limit):
        raise InvalidLimit(
            f"{LIMIT_OPTION}={limit!r}: expected a Limit, such as Limit('stripe', rate='100/m')"
        )
    return limit
