"""Assertions about scheduled tasks, for pytest and ``unittest``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from celery import Celery, Task, current_app

from celery_delayq.deadletters.client import DeadLetters
from celery_delayq.errors import TravelError
from celery_delayq.model.dead_letter import DeadLetter
from celery_delayq.model.envelope import due_of_eta
from celery_delayq.model.scheduled import Filter, ScheduledTask, moment
from celery_delayq.schedule.client import Schedule
from celery_delayq.store.session import Session

#: Most tasks that an error lists.
_MOST_LISTED = 10


def scheduled(task: Task | str | None = None) -> list[ScheduledTask]:
    """Return the scheduled tasks by their due times.

    Tasks that are held or paused are among them, tasks that are ready are not.

    Parameters
    ----------
    task : Task | str | None
        The only task, or its name; None for all tasks.

    Raises
    ------
    NotSupported
        The app's broker keeps no schedule that can be read.
    """
    with Session(_app_of(task)) as session:
        return [*Schedule(session).entries(Filter(task=_name_of(task)))]


def dead_letters(task: Task | str | None = None) -> list[DeadLetter]:
    """Return the dead letters by their time of death. Parameters and errors of `scheduled`."""
    name = _name_of(task)
    with Session(_app_of(task)) as session:
        return [each for each in DeadLetters(session)() if name in (None, each.task)]


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
        to lists, since JSON has no tuples.
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
    NotSupported
        As for `scheduled`.
    """
    __tracebackhide__ = True
    found = _Search(task, args, kwargs, within, at)
    number = len(found.matching)
    if (number == 0) if count is None else (number != count):
        wanted = "a" if count is None else f"{count}"
        raise AssertionError(found.text(f"expected {wanted} scheduled", f"{number} found"))
    return found.matching


def assert_not_scheduled(
    task: Task | str,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    within: float | None = None,
    at: datetime | str | None = None,
) -> None:
    """Assert that no such task is scheduled. Parameters and errors of `assert_scheduled`."""
    __tracebackhide__ = True
    found = _Search(task, args, kwargs, within, at)
    if found.matching:
        raise AssertionError(found.text("expected no scheduled", f"{len(found.matching)} found"))


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
    from celery_delayq.testing.travel.traveller import TimeTravel

    if TimeTravel.active is None:
        raise TravelError(
            "drain() runs tasks in the test, which needs the fixture delayq_time or time_travel()"
        )
    return TimeTravel.active.drain(queue)


class _Search:
    """The scheduled tasks that match, and those that do not."""

    def __init__(
        self,
        task: Task | str,
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
        within: float | None,
        at: datetime | str | None,
    ) -> None:
        self._name = _name_of(task)
        self._at = None if at is None else moment(due_of_eta(at).ms)
        with Session(_app_of(task)) as session:
            self._now = moment(session.now_ms())
            self._all = [*Schedule(session).entries()]
            self._dead = DeadLetters(session).count()
        self._wanted = {
            "args": None if args is None else _as_json(args),
            "kwargs": None if kwargs is None else _as_json(kwargs),
            "within": within,
        }
        self.matching = [each for each in self._all if not self._differences(each)]

    def _differences(self, entry: ScheduledTask) -> list[str]:
        """Return what makes an entry another one than the wanted one."""
        found, wanted = [], self._wanted
        if entry.task != self._name:
            found.append("another task")
        if wanted["args"] is not None and _as_json(entry.args) != wanted["args"]:
            found.append("other args")
        if wanted["kwargs"] is not None and _as_json(entry.kwargs) != wanted["kwargs"]:
            found.append("other kwargs")
        if self._at is not None and entry.due != self._at:
            found.append("due at another time")
        if wanted["within"] is not None and not (
            entry.due <= self._now + timedelta(seconds=wanted["within"])
        ):
            found.append("due later")
        return found

    def text(self, expected: str, number: str) -> str:
        """Return the error: what was expected, and what there is."""
        parts = [f"{name}={value!r}" for name, value in self._wanted.items() if value is not None]
        if self._at is not None:
            parts.append(f"at={self._at.isoformat()}")
        lines = [f"{' '.join([expected, str(self._name), *parts])}: {number}"]
        lines.append(f"It is {self._now.isoformat()}. Scheduled tasks: {len(self._all) or 'none'}")
        by_nearness = sorted(self._all, key=self._distance)
        lines += [self._line(each) for each in by_nearness[:_MOST_LISTED]]
        if len(self._all) > _MOST_LISTED:
            lines.append(f"  and {len(self._all) - _MOST_LISTED} more")
        if self._dead:
            lines.append(f"Dead letters: {self._dead}, see dead_letters()")
        return "\n".join(lines)

    def _distance(self, entry: ScheduledTask) -> tuple[bool, int]:
        """Return a key that sorts entries like the wanted one first: the same task before all."""
        return entry.task != self._name, len(self._differences(entry))

    def _line(self, entry: ScheduledTask) -> str:
        shown = [repr(each) for each in entry.args or ()]
        shown += [f"{name}={value!r}" for name, value in (entry.kwargs or {}).items()]
        seconds = (entry.due - self._now).total_seconds()
        differences = ", ".join(self._differences(entry))
        state = "" if entry.state == "scheduled" else f", {entry.state}"
        return (
            f"  {entry.task}({', '.join(shown)}) due in {seconds:g} s, at {entry.due.isoformat()}"
            f"{state}{f' ({differences})' if differences else ''}"
        )


def _as_json(value: Any) -> Any:
    """Return a value with lists for tuples, as JSON has them."""
    if isinstance(value, Mapping):
        return {key: _as_json(each) for key, each in value.items()}
    is_list = isinstance(value, Iterable) and isinstance(value, (list, tuple))
    return [_as_json(each) for each in value] if is_list else value


def _name_of(task: Task | str | None) -> str | None:
    return task if task is None or isinstance(task, str) else str(task.name)


def _app_of(task: Task | str | None) -> Celery:
    if task is not None and not isinstance(task, str):
        app: Celery = task.app
        return app
    from celery_delayq.testing.travel.traveller import TimeTravel

    return current_app if TimeTravel.active is None else TimeTravel.active.app
