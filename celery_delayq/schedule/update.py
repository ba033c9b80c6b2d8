"""Changes what scheduled tasks are: arguments, priority, expiry and headers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import partial
from numbers import Real
from typing import Any
from uuid import uuid4

from celery import Celery

from celery_delayq.errors import ConfigError, InvalidOption
from celery_delayq.integration.send_task import task_of
from celery_delayq.model.changes import Expiry, MessageChanges, MessageEditor
from celery_delayq.model.changes.record import edited_record
from celery_delayq.model.envelope import Record, due_of_eta
from celery_delayq.model.scheduled import Outcome, ScheduledTask, bound_ms, moment, outcome_of
from celery_delayq.model.script_values import Location, StatusCode, Swap
from celery_delayq.model.task_options import check_expires
from celery_delayq.schedule.client import id_of
from celery_delayq.store.keys import Layout
from celery_delayq.store.paging import queues_of
from celery_delayq.store.session import Session
from celery_delayq.store.stores import Stores, find_steps_of
from celery_delayq.utils.delegation import methods_name_arguments

#: Attempts to change an entry while others change it.
UPDATE_ATTEMPTS = 5

#: The code of an entry that another process has changed meanwhile.
_CHANGED: StatusCode = "c"


@methods_name_arguments
class Updates:
    """Changes scheduled tasks. Called as ``delayq.updates``."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def update(
        self,
        id: str,
        *,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        priority: int | None = None,
        expires: float | datetime | str | bool | None = None,
        headers: Mapping[str, Any] | None = None,
        queue: str | None = None,
        if_eta: datetime | str | None = None,
        unpickle: bool = False,
    ) -> Outcome:
        """Change a task that is scheduled or held. What is None stays.

        The due time, the id, the number of retries and the canvas of the task stay. Its unique key
        and its limit follow the new arguments. If several tasks have the id, all are changed.

        Parameters
        ----------
        id : str
            The id of a task, or its ``AsyncResult``.
        args, kwargs : Sequence | None, Mapping | None
            New arguments, which replace all positional, or all keyword arguments.
        priority : int | None
            New priority.
        expires : float | datetime | str | bool | None
            When the task expires: seconds from now, or a point in time. False: never.
        headers : Mapping[str, Any] | None
            Headers to set, values of JSON. None as a value removes a header.
        queue : str | None
            The only queue to search; None for all queues.
        if_eta : datetime | str | None
            Change the task only if it is due at this time.
        unpickle : bool
            Change arguments that are pickled, or encoded by a serializer that is not kombu's own,
            too. This decodes them, which may run code of whoever wrote them. New arguments need
            it, a new priority does not.

        Returns
        -------
        Outcome
            ``DONE``; ``READY`` or ``RUNNING`` if the task has left the schedule; ``UNKNOWN`` if it
            has finished or never existed; ``CHANGED`` if it is due at another time; ``CONFLICT``
            if another task has its new unique key.

        Raises
        ------
        ConfigError
            Nothing is to be changed, an argument has a wrong type or cannot be encoded, or the task
            does not take the arguments.
        InvalidFilter, InvalidETA, InvalidOption
            *id* is no id, *if_eta* no time, or *priority* or *expires* is invalid.
        InvalidUnique, InvalidLimit
            The unique key or the key of the limit cannot be computed from the new arguments.
        RecordError
            The message or its arguments cannot be decoded by this process.
        """
        return self._update(
            id,
            queue,
            if_eta,
            args=args,
            kwargs=kwargs,
            priority=priority,
            expires=expires,
            headers=headers,
            unpickle=unpickle,
        )

    def _update(
        self,
        id: str,
        queue: str | None,
        if_eta: datetime | str | None,
        seen: Sequence[ScheduledTask] | None = None,
        **given: Any,
    ) -> Outcome:
        app = self._session.app
        changes = changes_of(app, **given)
        if changes.is_empty:
            raise ConfigError(
                "update() without a change: give args, kwargs, priority, expires or headers"
            )
        if_due, editor = bound_ms("if_eta", if_eta), editor_of(app, changes)
        return _Update(self._session, id_of(id), queue, if_due, editor, seen).make()


class _Update:
    """A change of all entries with an id, each compared with what was read before."""

    def __init__(
        self,
        session: Session,
        id: str,
        queue: str | None,
        if_due: int | None,
        editor: MessageEditor,
        seen: Sequence[ScheduledTask] | None,
    ) -> None:
        self._ask = session.ask
        self._renames = session.renames
        self._id = id
        self._queue = queue
        self._if_due = if_due
        self._editor = editor
        #: The messages that entries must have, by queue and name; None for any.
        self._seen = None if seen is None else {(t.queue, t._name): t.message for t in seen}
        #: The outcomes so far, by queue and name.
        self._codes: dict[tuple[str, str], StatusCode] = {}

    def make(self) -> Outcome:
        """Make the change; try again if another process has changed an entry meanwhile."""
        for _ in range(UPDATE_ATTEMPTS):
            swaps = self._swaps()
            if not swaps:
                break
            self._swap(swaps)
            if _CHANGED not in self._codes.values():
                break
        return outcome_of([*self._codes.values()])

    def _swaps(self) -> dict[str, list[Swap]]:
        """Read the entries; return the changes to make, by queue."""
        layouts, places = self._ask(self._find)
        swaps: dict[str, list[Swap]] = {}
        before, self._codes = self._codes, {}
        for queue, its in places.items():
            for place in its:
                entry = queue, place.name
                code = self._codes[entry] = before.get(entry, _CHANGED)
                if code != _CHANGED:
                    continue
                if place.record is None:
                    self._codes[entry] = "r" if place.state == "running" else "w"
                elif self._if_due in (None, place.due_ms) and self._is_as_seen(queue, place):
                    after = edited_record(place.record, self._editor.edit, layouts[queue].step_of)
                    names = self._renames.all_names(Record.unpack(after).task)
                    swap = Swap(place.name, place.record, after, self._if_due, names)
                    swaps.setdefault(queue, []).append(swap)
        for entry, code in before.items():  # gone meanwhile
            self._codes.setdefault(entry, "u" if code == _CHANGED else code)
        return swaps

    def _is_as_seen(self, queue: str, place: Location) -> bool:
        if self._seen is None:
            return True
        message = ScheduledTask.of_place(queue, place).message
        # An unreadable message is refused when it is edited.
        return message is None or message == self._seen.get((queue, place.name))

    def _find(
        self, stores: Stores
    ) -> tuple[Mapping[str, Layout], Mapping[str, Sequence[Location]]]:
        layouts, ids = queues_of(stores, self._queue), [self._id]
        return layouts, stores.run_each(stores.queues_with(layouts, ids), find_steps_of(ids))

    def _swap(self, swaps: Mapping[str, Sequence[Swap]]) -> None:
        token = uuid4().hex
        replies = self._ask(
            lambda stores: stores.run_each(
                swaps, lambda store, queue: store.control.swap_steps(queue, swaps[queue], token)
            )
        )
        for queue, codes in replies.items():
            for swap, code in zip(swaps[queue], codes, strict=True):
                self._codes[queue, swap.name] = code


def update_as_seen(
    updates: Updates, id: str, seen: Sequence[ScheduledTask], if_eta: datetime, **changes: Any
) -> Outcome:
    """Change a task as :meth:`Updates.update` does, unless another message has its id by now.

    Parameters
    ----------
    seen : Sequence[ScheduledTask]
        The tasks with the id as they were read. An entry with another message is ``CHANGED``.
    """
    return updates._update(id, None, if_eta, seen, **changes)


def editor_of(app: Celery, changes: MessageChanges) -> MessageEditor:
    """Return the editor that makes changes with the tasks of an app."""
    return MessageEditor(app, changes, partial(task_of, app))


def changes_of(app: Celery, *, expires: Any = None, **given: Any) -> MessageChanges:
    """Return checked changes; raises the errors of :meth:`MessageChanges.check`.

    *expires* is that of :meth:`Updates.update`; *given* are other fields of the changes.
    """
    if expires is not None and expires is not False:
        expires = _expiry(app, expires)
    return MessageChanges(expires=expires, **given).check()


def _expiry(app: Celery, expires: Any) -> Expiry:
    """Return an expiry as Celery sends it: a number of seconds counts from now."""
    check_expires(expires)
    now = datetime.now(timezone.utc)
    if isinstance(expires, (str, datetime)):
        at = moment(due_of_eta(expires).ms)
    elif isinstance(expires, Real) and not isinstance(expires, bool):
        at = now + timedelta(seconds=float(expires))
    else:
        raise InvalidOption(
            f"expires={expires!r}: expected a number of seconds, a datetime or its ISO 8601 form, "
            "or False for no expiry"
        )
    return Expiry(at.astimezone(app.timezone).isoformat(), int((at - now).total_seconds() * 1000))
