"""Assertions about scheduled tasks, for pytest and ``unittest``."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from celery import Celery, Task, current_app
from kombu.serialization import prepare_accept_content

from celery_delayq.admin.stats import gather
from celery_delayq.deadletters.client import DeadLetters
from celery_delayq.errors import InvalidFilter, TravelError
from celery_delayq.model.dead_letter import DeadFilter, DeadLetter
from celery_delayq.model.envelope import due_of_eta
from celery_delayq.model.names import renames_of
from celery_delayq.model.payload import READABLE_CONTENT_TYPES, body_if_readable
from celery_delayq.model.scheduled import Filter, ScheduledTask, moment
from celery_delayq.schedule.client import Schedule
from celery_delayq.store.session import Session

if TYPE_CHECKING:
    from celery_delayq.testing.travel.traveller import TimeTravel

#: Most tasks that an error lists.
_MOST_LISTED = 10

#: The difference of a task whose arguments cannot be read.
_UNREADABLE = "its arguments cannot be read"


def scheduled(task: Task | str | None = None) -> list[ScheduledTask]:
    """Return the scheduled tasks by their due times.

    Tasks that are held or paused are among them, tasks that are ready are not.

    Parameters
    ----------
    task : Task | str | None
        The only task, or its name; None for all tasks.

    Raises
    ------
    InvalidFilter
        *task* is neither a task nor a name.
    NotSupported
        The app's broker keeps no schedule that can be read.
    """
    wanted = Filter(task=_name_of(task))
    with Session(_app_of(task)) as session:
        return [*Schedule(session).entries(wanted)]


def dead_letters(task: Task | str | None = None) -> list[DeadLetter]:
    """Return the dead letters by their time of death. Parameters and errors of `scheduled`."""
    wanted = DeadFilter(task=_name_of(task))
    with Session(_app_of(task)) as session:
        return [*DeadLetters(session)(wanted)]


def assert_scheduled(
    task: Task | str,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    within: float | None = None,
    at: datetime | str | None = None,
    count: int | None = None,
) -> list[ScheduledTask]:
    """Assert that a task is scheduled, and return the tasks that match.

    Parameters
    ----------
    task : Task | str
        The task, or its name.
    args, kwargs : Sequence | None, Mapping | None
        Its positional and keyword arguments, as the call gave them; None for any. Tuples are equal
        to lists, since JSON has no tuples. Pickled arguments are read while the test travels.
    within : float | None
        Seconds from now, by the clock that decides what is due, until which the task is due.
    at : datetime | str | None
        When the task is due, exact to a millisecond. A time without a time zone is in UTC.
    count : int | None
        How many tasks match; None for at least one.

    Raises
    ------
    AssertionError
        Fewer or more tasks match. The message lists what is scheduled.
    InvalidETA
        *at* is no moment.
    InvalidFilter
        Another argument is of the wrong type.
    NotSupported
        As for `scheduled`.
    """
    __tracebackhide__ = True
    if count is not None and not (isinstance(count, int) and count >= 0):
        raise InvalidFilter(f"count={count!r}: expected 0 or more")
    found = _Search(task, args, kwargs, within, at)
    number = len(found.matching)
    is_right = number > 0 if count is None else number == count and not found.unreadable
    if not is_right:
        raise AssertionError(found.text(f"expected {'a' if count is None else count} scheduled"))
    return found.matching


def assert_not_scheduled(
    task: Task | str,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    within: float | None = None,
    at: datetime | str | None = None,
) -> None:
    """Assert that no such task is scheduled. Parameters and errors of `assert_scheduled`.

    A task whose arguments cannot be read may be such a task: that is an AssertionError too.
    """
    __tracebackhide__ = True
    found = _Search(task, args, kwargs, within, at)
    if found.matching or found.unreadable:
        raise AssertionError(found.text("expected no scheduled"))


def drain(queue: str | None = None) -> int:
    """Run what is ready or due now, and return the number of runs. The clocks stand still.

    Needs the fixture ``delayq_time``, or a block of `time_travel`: the tasks run as they do there.

    Parameters
    ----------
    queue : str | None
        The only queue; None for all queues.

    Raises
    ------
    TravelError
        The test does not travel, or the tasks never come to rest.
    """
    travel = _active_travel()
    if travel is None:
        raise TravelError(
            "drain() runs tasks in the test, which needs the fixture delayq_time or time_travel()"
        )
    return travel.drain(queue)


class _Search:
    """The scheduled tasks that match, those that may match, and all others."""

    def __init__(
        self,
        task: Task | str,
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
        within: float | None,
        at: datetime | str | None,
    ) -> None:
        _check_types(task, args, kwargs, within)
        self._name = _name_of(task)
        self._at = None if at is None else moment(due_of_eta(at).ms)
        self._app = _app_of(task)
        self._accept = _accepted(self._app)
        self._names = renames_of(self._app).names(str(self._name))
        with Session(self._app) as session:
            self._now = moment(session.now_ms())
            self._all = [*Schedule(session).entries()]
            self._dead = DeadLetters(session).count()
        self._wanted = {
            "args": None if args is None else _as_json(args),
            "kwargs": None if kwargs is None else _as_json(kwargs),
            "within": within,
        }
        found = [(each, self._differences(each)) for each in self._all]
        self.matching = [each for each, differences in found if not differences]
        #: Tasks that differ in nothing but arguments that cannot be read.
        self.unreadable = [each for each, differences in found if differences == [_UNREADABLE]]

    def _differences(self, entry: ScheduledTask) -> list[str]:
        """Return what makes an entry another one than the wanted one."""
        found, wanted = [], self._wanted
        if entry.task not in self._names:
            found.append("another task")
        if wanted["args"] is not None or wanted["kwargs"] is not None:
            arguments = self._arguments(entry)
            if arguments is None:
                found.append(_UNREADABLE)
            else:
                found += [
                    f"other {name}"
                    for name, value in zip(("args", "kwargs"), arguments, strict=True)
                    if wanted[name] is not None and _as_json(value) != wanted[name]
                ]
        if self._at is not None and entry.due != self._at:
            found.append("due at another time")
        if wanted["within"] is not None and not (
            entry.due <= self._now + timedelta(seconds=wanted["within"])
        ):
            found.append("due later")
        return found

    def _arguments(self, entry: ScheduledTask) -> tuple[Any, Any] | None:
        """Return the arguments of an entry; None if they cannot be read."""
        body = body_if_readable(entry.message or {}, self._accept)
        return body and body[:2]

    def text(self, expected: str) -> str:
        """Return the error: what was expected, and what there is."""
        parts = [f"{name}={value!r}" for name, value in self._wanted.items() if value is not None]
        if self._at is not None:
            parts.append(f"at={self._at.isoformat()}")
        lines = [f"{' '.join([expected, str(self._name), *parts])}: {len(self.matching)} found"]
        lines.append(f"It is {self._now.isoformat()}. Scheduled tasks: {len(self._all) or 'none'}")
        by_nearness = sorted(self._all, key=self._distance)
        lines += [self._line(each) for each in by_nearness[:_MOST_LISTED]]
        if len(self._all) > _MOST_LISTED:
            lines.append(f"  and {len(self._all) - _MOST_LISTED} more")
        if ready := _ready_tasks(self._app):
            numbers = ", ".join(f"{number} of {name}" for name, number in ready.most_common())
            lines.append(f"Ready tasks, which are not scheduled: {numbers}")
        if self._dead:
            lines.append(f"Dead letters: {self._dead}, see dead_letters()")
        return "\n".join(lines)

    def _distance(self, entry: ScheduledTask) -> tuple[bool, int]:
        """Return a key that sorts entries like the wanted one first: the same task before all."""
        return entry.task not in self._names, len(self._differences(entry))

    def _line(self, entry: ScheduledTask) -> str:
        args, kwargs = self._arguments(entry) or ((), {})
        shown = [repr(each) for each in args]
        shown += [f"{name}={value!r}" for name, value in kwargs.items()]
        seconds = (entry.due - self._now).total_seconds()
        differences = ", ".join(self._differences(entry))
        state = "" if entry.state == "scheduled" else f", {entry.state}"
        return (
            f"  {entry.task}({', '.join(shown)}) due in {seconds:g} s, at {entry.due.isoformat()}"
            f"{state}{f' ({differences})' if differences else ''}"
        )


def _accepted(app: Celery) -> Collection[str]:
    """Return the content types that are decoded.

    The messages on the private server of a travelling test come from the test: pickle does no harm.
    """
    travel = _active_travel()
    is_travelling = travel is not None and travel.app is app
    own = prepare_accept_content(app.conf.accept_content) if is_travelling else ()
    return {*READABLE_CONTENT_TYPES, *own}


def _ready_tasks(app: Celery) -> Counter[str]:
    """Return the number of ready messages by task."""
    with Session(app) as session:
        queues = gather(session.stores, [*app.amqp.queues]).queues
    return sum((Counter(each.ready_tasks) for each in queues), Counter())


def _as_json(value: Any) -> Any:
    """Return a value with lists for tuples, as JSON has them."""
    if isinstance(value, Mapping):
        return {key: _as_json(each) for key, each in value.items()}
    is_list = isinstance(value, Iterable) and isinstance(value, (list, tuple))
    return [_as_json(each) for each in value] if is_list else value


def _check_types(task: Any, args: Any, kwargs: Any, within: Any) -> None:
    """Raise InvalidFilter for what no task can match: `assert_not_scheduled` would always hold."""
    if task is None:
        raise InvalidFilter("task=None: expected a task or the name of a task")
    if not isinstance(args, (list, tuple, type(None))):
        raise InvalidFilter(f"args={args!r}: expected a list or tuple, such as ({args!r},)")
    if not isinstance(kwargs, (Mapping, type(None))):
        raise InvalidFilter(f"kwargs={kwargs!r}: expected a dict of the keyword arguments")
    if within is not None and not (isinstance(within, (int, float)) and math.isfinite(within)):
        raise InvalidFilter(f"within={within!r}: expected a number of seconds, such as 3600")


def _name_of(task: Task | str | None) -> str | None:
    if not isinstance(task, (Task, str, type(None))):
        raise InvalidFilter(
            f"{task!r} is neither a task nor the name of a task; arguments are given as args= and "
            "kwargs="
        )
    return task if task is None or isinstance(task, str) else str(task.name)


def _app_of(task: Task | str | None) -> Celery:
    if task is not None and not isinstance(task, str):
        app: Celery = task.app
        return app
    travel = _active_travel()
    return current_app if travel is None else travel.app


def _active_travel() -> TimeTravel | None:
    from celery_delayq.testing.travel.traveller import TimeTravel  # imports Celery's worker

    return TimeTravel.active
