"""What those who manage the schedule call: get, list, cancel, move, run, pause."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from celery_delayq.errors import ConfigError, InvalidETA, InvalidFilter
from celery_delayq.model.envelope import Due, due_of_eta
from celery_delayq.model.lookup import StatusCode, to_bytes
from celery_delayq.model.names import check_name
from celery_delayq.model.scheduled import (
    Cursor,
    Filter,
    Outcome,
    Page,
    Paused,
    ScheduledTask,
    outcome_of,
)
from celery_delayq.schedule import revocation
from celery_delayq.schedule.bulk import BulkMixin, new_due, shift_ms, shifted
from celery_delayq.store.keys import Layout
from celery_delayq.store.paging import queues_of, read_page, scheduled_among
from celery_delayq.store.schedule import Store

if TYPE_CHECKING:
    from celery import Celery

T = TypeVar("T")

#: How often to try again to move an entry by an amount that others move at the same time.
ATTEMPTS = 5


class Client(BulkMixin):
    """The part of :class:`~celery_delayq.DelayQ` for those who manage the schedule."""

    app: Celery | None

    def _ask(self, question: Callable[[Store], T]) -> T:
        raise NotImplementedError

    # -- to look at

    def get(self, id: str, *, queue: str | None = None) -> ScheduledTask | None:
        """Return the task with that id, None for one that has finished or never was.

        Of several, as after sending one id twice, it is the one that is due first.

        Parameters
        ----------
        queue : str | None
            Look in this queue only.
        """
        return min(self.find(id, queue=queue), key=lambda each: each.due, default=None)

    def find(self, id: str, *, queue: str | None = None) -> Sequence[ScheduledTask]:
        """Return all tasks with that id: a task that is routed to two queues is two entries."""

        id = _id(id)

        def ask(store: Store) -> Sequence[ScheduledTask]:
            return [
                ScheduledTask.of_place(name, place)
                for name in queues_of(store, queue)
                for place in store.control.find(name, [id])
            ]

        return self._ask(ask)

    def list(
        self,
        *,
        queue: str | None = None,
        task: str | None = None,
        due_from: datetime | str | None = None,
        due_to: datetime | str | None = None,
        priority: int | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page:
        """Return a page of the schedule in order of due.

        What is paused comes last or, where a task is given, in its place by due. Entries that come
        or go between two pages are in them or not; all others are there once.

        Parameters
        ----------
        queue, task, due_from, due_to, priority
            See :class:`~celery_delayq.model.scheduled.Filter`.
        limit : int
            Most entries of the page, 1 to 10,000.
        cursor : str | None
            That of the page before.

        Raises
        ------
        InvalidCursor
            The cursor is none, or goes with another filter.
        """
        if not 1 <= limit <= 10_000:
            raise ValueError(f"limit={limit!r}: expected a number from 1 to 10,000")
        filter = Filter(queue, task, due_from, due_to, priority)
        after = None if cursor is None else Cursor.unpack(cursor, filter)
        return self._ask(lambda store: read_page(store, filter, limit, after))

    def entries(self, filter: Filter | None = None, *, page: int = 500) -> Iterator[ScheduledTask]:
        """Yield all scheduled entries that a filter means, in order of due."""
        filter = filter or Filter()
        after = None
        while True:
            found = self._ask(lambda store, after=after: read_page(store, filter, page, after))  # type: ignore[misc]
            yield from found
            if found.cursor is None:
                return
            after = Cursor.unpack(found.cursor, filter)

    def count(
        self,
        *,
        queue: str | None = None,
        task: str | None = None,
        due_from: datetime | str | None = None,
        due_to: datetime | str | None = None,
        priority: int | None = None,
    ) -> int:
        """Return how many entries are scheduled; a task that is routed to two queues is two.

        By priority, all entries have to be looked at.

        Parameters
        ----------
        queue, task, due_from, due_to, priority
            See :class:`~celery_delayq.model.scheduled.Filter`.
        """
        filter = Filter(queue, task, due_from, due_to, priority)
        if priority is not None:
            return sum(1 for _ in self.entries(filter))
        where = filter.where()
        return self._ask(
            lambda store: sum(store.control.count(name, where) for name in queues_of(store, queue))
        )

    # -- to change one

    def cancel(
        self, id: str, *, queue: str | None = None, if_eta: datetime | str | None = None
    ) -> Outcome:
        """Cancel a task that no worker has yet; it never runs then.

        Its state in the result backend is ``REVOKED`` then. What a worker has already is left to
        ``AsyncResult.revoke``.

        Parameters
        ----------
        if_eta : datetime | str | None
            Only if it is due at that time.

        Returns
        -------
        Outcome
            ``DONE``; ``RUNNING``, when a worker has it; ``UNKNOWN``, when it has finished or never
            was; ``CHANGED``, when it is due at another time than *if_eta*.
        """
        return self._cancel([_id(id)], queue, _ms(if_eta), "cancelled", ready=True)[0]

    def cancel_ids(
        self, ids: Sequence[str], *, reason: str = "cancelled", ready: bool = True
    ) -> Sequence[Outcome]:
        """Cancel many ids and return what became of each.

        Parameters
        ----------
        reason : str
            What the result backend is told.
        ready : bool
            Whether to cancel what is ready, too; else the outcome is ``READY``.
        """
        return self._cancel(ids, None, None, reason, ready=ready)

    def _cancel(
        self, ids: Sequence[str], queue: str | None, if_due: int | None, reason: str, *, ready: bool
    ) -> Sequence[Outcome]:
        if not ids:
            return []
        token = uuid4().hex
        entries: dict[tuple[str, str], ScheduledTask] = {}

        def ask(store: Store) -> Sequence[Sequence[StatusCode]]:
            found = queues_of(store, queue).items()
            for name, _ in found:
                entries.update(
                    ((name, each._name), each) for each in scheduled_among(store, name, ids)
                )
            return [
                store.control.cancel(name, layout, ids, if_due=if_due, ready=ready, token=token)
                for name, layout in found
            ]

        outcomes = [outcome_of(codes) for codes in zip(*self._ask(ask), strict=True)]
        outcomes = outcomes or [Outcome.UNKNOWN] * len(ids)
        self._note_cancelled(
            {id for id, outcome in zip(ids, outcomes, strict=True) if outcome},
            entries.values(),
            reason,
        )
        return outcomes

    def reschedule(
        self,
        id: str,
        *,
        eta: datetime | str | None = None,
        countdown: float | None = None,
        by: timedelta | float | None = None,
        queue: str | None = None,
        if_eta: datetime | str | None = None,
    ) -> Outcome:
        """Move a scheduled task to another time.

        Parameters
        ----------
        eta, countdown, by
            To a point in time, so many seconds from now, or later by an amount (earlier, if that is
            negative; seconds, if it is a number).
        if_eta : datetime | str | None
            Only if it is due at that time now.

        Returns
        -------
        Outcome
            ``DONE``; ``READY`` or ``RUNNING``, when it has left the schedule already; ``UNKNOWN``,
            when it has finished or never was; ``CHANGED``, when it is due at another time.

        Raises
        ------
        InvalidETA
            The new time is none, or has passed by Redis' clock.
        """
        due = new_due(eta, countdown, by)
        id, if_due = _id(id), _ms(if_eta)
        if due is None:
            outcome = self._shift(id, shift_ms(by), queue, if_due)
        else:
            outcome = self._change(
                queue,
                lambda store, name, _, token: store.control.reschedule(
                    name, [(id, due, if_due)], token
                ),
            )
        if outcome is Outcome.PAST:
            raise InvalidETA(
                f"eta={eta!r}, countdown={countdown!r}, by={by!r}: task {id} would have been due "
                "in the past; use run_now() to run it at once"
            )
        return outcome

    def run_now(
        self, id: str, *, queue: str | None = None, if_eta: datetime | str | None = None
    ) -> Outcome:
        """Make a scheduled task ready at once, to run next in its priority.

        What is paused is due at once when it goes on. The outcome is as for :meth:`reschedule`.
        """
        id, if_due = _id(id), _ms(if_eta)
        return self._change(
            queue,
            lambda store, name, layout, token: store.control.run_now(
                name, layout, [id], if_due=if_due, token=token
            ),
        )

    def _change(
        self, queue: str | None, change: Callable[[Store, str, Layout, str], Sequence[StatusCode]]
    ) -> Outcome:
        """Change something in all queues; asked twice, it is done once."""
        token = uuid4().hex

        def ask(store: Store) -> Outcome:
            found = queues_of(store, queue).items()
            return outcome_of([x for name, lay in found for x in change(store, name, lay, token)])

        return self._ask(ask)

    def _shift(self, id: str, by_ms: int, queue: str | None, if_due: int | None) -> Outcome:
        """Move by an amount: to the time that comes of it, as long as nobody else has moved it."""
        codes: dict[tuple[str, str], StatusCode] = {}
        for _ in range(ATTEMPTS):
            for each in self.find(id, queue=queue):
                place, due = (each.queue, each._name), due_of_eta(each.due).ms
                if codes.get(place, "c") == "c":
                    codes[place] = self._move(each, due, shifted(due, by_ms), if_due)
            if "c" not in codes.values() or if_due is not None:
                break
        return outcome_of([*codes.values()])

    def _move(self, each: ScheduledTask, due: int, new: Due, if_due: int | None) -> StatusCode:
        token = uuid4().hex
        move = each._name or each.id, new, due if if_due is None else if_due
        return self._ask(lambda store: store.control.reschedule(each.queue, [move], token))[0]

    # -- to pause

    def pause(self, *, queue: str | None = None, task: str | None = None) -> bool:
        """Pause a queue or a task name: nothing of it is promoted or started until it goes on.

        What a worker has taken already still runs. What is sent meanwhile is kept.

        Returns
        -------
        bool
            Whether it was not paused before.
        """
        _one_of(queue, task)
        token = uuid4().hex
        return self._ask(lambda store: store.control.pause([], queue=queue, task=task, token=token))

    def resume(self, *, queue: str | None = None, task: str | None = None) -> bool:
        """Let a queue or a task name go on; return whether it was paused."""
        _one_of(queue, task)
        token = uuid4().hex
        return self._ask(
            lambda store: store.control.pause(
                store.registry() if queue is None else [queue],
                queue=queue,
                task=task,
                resume=True,
                token=token,
            )
        )

    def paused(self) -> Paused:
        """Return which queues and tasks are paused, and since when."""
        return Paused.of(self._ask(lambda store: store.control.controls()))

    # -- what others are to know

    def _note_cancelled(
        self, ids: Collection[str], entries: Iterable[ScheduledTask], reason: str = "cancelled"
    ) -> None:
        if self.app is not None:
            revocation.note_cancelled(self.app, ids, entries, reason)


def _ms(eta: datetime | str | None) -> int | None:
    return None if eta is None else due_of_eta(eta).ms


def _id(id: Any) -> str:
    """Return the id that is meant by an id or by a result."""
    given = getattr(id, "id", id)
    if not isinstance(given, str):
        raise InvalidFilter(f"id={id!r}: expected the id of a task, or its AsyncResult")
    to_bytes(given)
    return given


def _one_of(queue: str | None, task: str | None) -> None:
    check_name("queue", queue)
    check_name("task", task)
    if (queue is None) == (task is None):
        raise ConfigError(f"queue={queue!r}, task={task!r}: give either a queue or a task name")
