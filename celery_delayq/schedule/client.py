"""Public API of the schedule: get, list, cancel, move, run, add, pause."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from itertools import chain
from typing import Any
from uuid import uuid4

from celery import Signature

from celery_delayq.errors import ConfigError, InvalidETA, InvalidFilter
from celery_delayq.integration.not_run import note_cancelled
from celery_delayq.integration.worker_checks import warn_of_naive_eta
from celery_delayq.model.envelope import Due, due_of_eta
from celery_delayq.model.lookup import (
    IfDue,
    ListedEntry,
    Location,
    ReadyAction,
    StatusCode,
    to_bytes,
)
from celery_delayq.model.names import check_name
from celery_delayq.model.scheduled import (
    Bulk,
    Cursor,
    Filter,
    Outcome,
    Page,
    Paused,
    ScheduledTask,
    bound_ms,
    outcome_of,
)
from celery_delayq.schedule.bulk import change_all, new_due, shift_due, shift_due_or_past, shift_ms
from celery_delayq.schedule.items import Item, ItemOutcome, ManyReport
from celery_delayq.schedule.schedule_many import SEND_BATCH, schedule_many
from celery_delayq.store.keys import Layout
from celery_delayq.store.paging import counts_of, queues_of, read_page, scheduled_among
from celery_delayq.store.schedule import Store
from celery_delayq.store.scripting.calls import Steps
from celery_delayq.store.session import Session
from celery_delayq.store.stores import Stores, finding

#: Attempts to move an entry by an amount while others move it.
MOVE_ATTEMPTS = 5

#: The steps of a change in one queue, which may be repeated: they have a token.
_ChangeSteps = Callable[[Store, str, Layout], Steps[list[StatusCode]]]


class Schedule:
    """Reads and changes scheduled tasks. Called as ``delayq.schedule``."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._ask = session.ask

    def get(self, id: str, *, queue: str | None = None) -> ScheduledTask | None:
        """Return the task with that id, None for one that has finished or never existed.

        Of several tasks with one id, it is the one that is due first.

        Parameters
        ----------
        id : str
            The id of a task, or its ``AsyncResult``.
        queue : str | None
            Look in this queue only; None for all.

        Raises
        ------
        InvalidFilter
            *id* is neither the id of a task nor its ``AsyncResult``.
        """
        return min(self.find(id, queue=queue), key=lambda each: each.due, default=None)

    def find(self, id: str, *, queue: str | None = None) -> Sequence[ScheduledTask]:
        """Return all tasks with that id: a task that is routed to two queues is two entries.

        Parameters
        ----------
        id, queue
            As for :meth:`get`.

        Returns
        -------
        Sequence[ScheduledTask]
            Scheduled, ready or running tasks, in no order; empty for one that has finished.

        Raises
        ------
        InvalidFilter
            *id* is neither the id of a task nor its ``AsyncResult``.
        """
        id = id_of(id)

        def ask(stores: Stores) -> Sequence[ScheduledTask]:
            queues = stores.queues_with(queues_of(stores, queue), [id])
            found = stores.run_each(queues, finding([id]))
            return [
                ScheduledTask.of_place(name, place)
                for name, places in found.items()
                for place in places
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
        """Return a page of scheduled tasks, the first that is due first.

        Tasks that are added or removed between two pages may be missing. All others appear once,
        with their due of that moment, in the order of their dues when the first page was read.
        That holds while at most an hour lies between two pages.

        Parameters
        ----------
        queue, task, due_from, due_to, priority
            See :class:`~celery_delayq.model.scheduled.Filter`.
        limit : int
            Most entries of the page, 1 to 10,000.
        cursor : str | None
            ``Page.cursor`` of the page before; None for the first page.

        Raises
        ------
        InvalidCursor
            The cursor is invalid, or belongs to another filter.
        InvalidFilter, InvalidETA
            A part of the filter is wrong.
        ValueError
            *limit* is not in its range.
        """
        if not 1 <= limit <= 10_000:
            raise ValueError(f"limit={limit!r}: expected a number from 1 to 10,000")
        filter = Filter(queue, task, due_from, due_to, priority)
        after = None if cursor is None else Cursor.unpack(cursor, filter)
        return self._ask(lambda stores: read_page(stores, filter, limit, after))

    def entries(self, filter: Filter | None = None, *, page: int = 500) -> Iterator[ScheduledTask]:
        """Return an iterator over all scheduled tasks that match a filter, the first that is due
        first. The first page is read at once. Tasks may be changed meanwhile: as for :meth:`list`,
        each comes once.

        Parameters
        ----------
        filter : Filter | None
            None for all.
        page : int
            Tasks that are read from Redis at once.
        """
        wanted = filter or Filter()

        def read(after: Cursor | None) -> Page:
            return self._ask(lambda stores: read_page(stores, wanted, page, after))

        def rest(found: Page) -> Iterator[ScheduledTask]:
            yield from found
            while found.cursor is not None:
                found = read(Cursor.unpack(found.cursor, wanted))
                yield from found

        return rest(read(None))

    def count(
        self,
        *,
        queue: str | None = None,
        task: str | None = None,
        due_from: datetime | str | None = None,
        due_to: datetime | str | None = None,
        priority: int | None = None,
    ) -> int:
        """Return how many tasks are scheduled; one that is routed to two queues counts twice.

        With *priority*, the whole schedule is read.

        Parameters
        ----------
        queue, task, due_from, due_to, priority
            See :class:`~celery_delayq.model.scheduled.Filter`.

        Raises
        ------
        InvalidFilter, InvalidETA
            A part of the filter is wrong.
        """
        filter = Filter(queue, task, due_from, due_to, priority)
        if priority is not None:
            return sum(1 for _ in self.entries(filter))
        where = filter.where()
        return self._ask(
            lambda stores: sum(counts_of(stores, queues_of(stores, queue), where).values())
        )

    def cancel(
        self, id: str, *, queue: str | None = None, if_eta: datetime | str | None = None
    ) -> Outcome:
        """Cancel a task that no worker has yet: it never runs.

        Its state in the result backend becomes ``REVOKED``. For a task that a worker has, use
        ``AsyncResult.revoke``.

        Parameters
        ----------
        id : str
            The id of a task, or its ``AsyncResult``.
        queue : str | None
            In this queue only; None for all.
        if_eta : datetime | str | None
            Only if it is due at that time.

        Returns
        -------
        Outcome
            ``DONE``; ``RUNNING``, when a worker has it; ``UNKNOWN``, when it has finished or never
            was; ``CHANGED``, when it is due at another time than *if_eta*.

        Raises
        ------
        InvalidFilter, InvalidETA
            *id* is no id, or *if_eta* no time.
        """
        if_due = bound_ms("if_eta", if_eta)
        return self._cancel([id_of(id)], queue, if_due, "cancelled", "cancel")[0]

    def cancel_ids(
        self,
        ids: Sequence[str],
        *,
        if_due: Sequence[int] | None = None,
        reason: str = "cancelled",
        ready: bool = True,
    ) -> Sequence[Outcome]:
        """Cancel many ids and return the outcome of each.

        Parameters
        ----------
        if_due : Sequence[int] | None
            When each must be due (ms); others are ``CHANGED``, such as the retry of a task.
        reason : str
            What the result backend stores as the reason.
        ready : bool
            Whether to cancel ready tasks too; otherwise their outcome is ``READY``.
        """
        return self._cancel(ids, None, if_due, reason, "cancel" if ready else "leave")

    def cancel_revoked(self, ids: Sequence[str]) -> Sequence[Outcome]:
        """Cancel ids that workers refuse; ready ones lose their unique keys only."""
        return self._cancel(ids, None, None, "revoked", "free")

    def _cancel(
        self,
        ids: Sequence[str],
        queue: str | None,
        if_due: IfDue,
        reason: str,
        ready: ReadyAction,
    ) -> Sequence[Outcome]:
        if not ids:
            return []
        token = uuid4().hex

        def steps(store: Store, name: str, layout: Layout) -> Steps[list[StatusCode]]:
            return store.control.cancel_steps(
                name, layout, ids, if_due=if_due, ready=ready, token=token
            )

        change = _Change(ids, queue, steps)
        codes = self._ask(change.make)
        outcomes = [outcome_of(each) for each in zip(*codes, strict=True)]
        outcomes = outcomes or [Outcome.UNKNOWN] * len(ids)
        done = {id for id, outcome in zip(ids, outcomes, strict=True) if outcome}
        note_cancelled(self._session.app, done, change.scheduled(), reason)
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
            The new time is invalid, or has passed by Redis' clock.
        """
        due = new_due(eta, countdown, by)
        warn_of_naive_eta(self._session.app, eta)
        id, if_due = id_of(id), bound_ms("if_eta", if_eta)
        if due is None:
            outcome = self._shift(id, shift_ms(by), queue, if_due)
        else:
            token = uuid4().hex
            outcome = self._change(
                id,
                queue,
                lambda store, name, _: store.control.reschedule_steps(
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

        A paused task is due at once when it resumes. The outcome is as for :meth:`reschedule`.
        """
        id, if_due, token = id_of(id), bound_ms("if_eta", if_eta), uuid4().hex
        return self._change(
            id,
            queue,
            lambda store, name, layout: store.control.run_now_steps(
                name, layout, [id], if_due=if_due, token=token
            ),
        )

    def _change(self, id: str, queue: str | None, steps: _ChangeSteps) -> Outcome:
        """Change entries in all queues."""
        codes = self._ask(_Change([id], queue, steps).make)
        return outcome_of([*chain.from_iterable(codes)])

    def _shift(self, id: str, by_ms: int, queue: str | None, if_due: int | None) -> Outcome:
        """Move entries by an amount; try again when somebody else moved one meanwhile.

        Each is moved to a time if it is due as it was read, so a repeated call changes nothing.
        """
        codes: dict[tuple[str, str], StatusCode] = {}
        for _ in range(MOVE_ATTEMPTS):
            for each in self.find(id, queue=queue):
                place, due = (each.queue, each._name), due_of_eta(each.due).ms
                if codes.get(place, "c") == "c":
                    codes[place] = self._move(each, due, shift_due(due, by_ms), if_due)
            if "c" not in codes.values() or if_due is not None:
                break
        return outcome_of([*codes.values()])

    def _move(self, each: ScheduledTask, due: int, new: Due, if_due: int | None) -> StatusCode:
        token = uuid4().hex
        move = each._name or each.id, new, due if if_due is None else if_due
        codes = self._ask(
            lambda stores: stores.of(each.queue).control.reschedule(each.queue, [move], token)
        )
        return codes[0]

    # -- to add

    def schedule_many(
        self,
        /,
        items: Iterable[Item | Mapping[str, Any] | Signature],
        *,
        task: Any = None,
        on_outcome: Callable[[ItemOutcome], None] | None = None,
        signals: bool = True,
        batch: int = SEND_BATCH,
        **options: Any,
    ) -> ManyReport:
        """Schedule very many tasks, in batches and with bounded memory.

        The messages are those that ``apply_async`` would send. An item that is wrong is refused
        and does not stop the others. A batch is sent when it is full, and while Redis works on it
        the next one fills; when items come slowly, one that is older than 0.1 s is sent with the
        next item.

        Parameters
        ----------
        items : Iterable
            Calls: an :class:`Item`, a mapping with some of its fields, or a signature such as
            ``add.s(1, 2).set(countdown=60)``. They are taken one by one, so a generator of
            millions is fine.
        task : Task | str | None
            The task of the items that name none.
        on_outcome : Callable[[ItemOutcome], None] | None
            Called with the outcome of each item, soon after it was sent, in no particular order.
        signals : bool
            Where something listens to ``before_task_publish``, ``after_task_publish`` or
            ``task_sent``, Celery makes each message itself, with its signals, at about a sixth of
            the speed. False has it make only the first of each kind (same task, queue and other
            options): what listeners put into that one is in all of them.
        batch : int
            Entries that are sent together.
        **options
            Options of ``apply_async`` for all items; an item's own options go before them.

        Returns
        -------
        ManyReport
            The number of items with each outcome.

        Raises
        ------
        ManyFailed
            The iterable raised an error, or Redis stayed away for longer than
            ``task_publish_retry_policy`` tries; continue from ``report.position``.
            Running again with the same ids adds nothing twice while they wait or run.
        ConfigError
            The broker is not one of ours, ``task_always_eager`` is set or ``task_protocol`` is 1.

        Notes
        -----
        No event ``task-sent`` is sent, ``min_delay`` does not count, and inside a task those that
        are sent do not become its children. Calls that one template cannot serve are made by
        Celery one by one, which takes six times as long: other serializers than JSON,
        compression, tasks or apps with an ``apply_async``, ``shadow_name`` or ``send_task`` of
        their own, pydantic arguments, and routers that are functions.

        Examples
        --------
        >>> rows = [{"args": (n,), "countdown": n, "id": f"reminder-{n}"} for n in range(3)]
        >>> delayq.schedule_many(rows, task=remind, queue="mail")  # doctest: +SKIP
        """
        return schedule_many(
            self._session, items, task, options, on_outcome, signals=signals, batch=batch
        )

    # -- to pause

    def pause(self, *, queue: str | None = None, task: str | None = None) -> bool:
        """Pause a queue or a task name: none of its tasks is promoted or started until it resumes.

        Tasks that a worker has taken still run. Tasks that are sent meanwhile are kept.

        Parameters
        ----------
        queue, task : str | None
            The name of a queue or of a task: exactly one of them.

        Returns
        -------
        bool
            Whether it was not paused before.

        Raises
        ------
        ConfigError
            Both names are given, or none.
        InvalidFilter
            The name is no text, or empty.
        """
        _check_one_name(queue, task)
        token = uuid4().hex
        return self._ask(lambda stores: stores.pause(queue, task, token=token))

    def resume(self, *, queue: str | None = None, task: str | None = None) -> bool:
        """Resume a queue or a task name that was paused; its overdue tasks cause no burst.

        Parameters
        ----------
        queue, task : str | None
            The name of a queue or of a task: exactly one of them.

        Returns
        -------
        bool
            Whether it was paused.

        Raises
        ------
        ConfigError
            Both names are given, or none.
        InvalidFilter
            The name is no text, or empty.
        """
        _check_one_name(queue, task)
        token = uuid4().hex
        return self._ask(lambda stores: stores.pause(queue, task, resume=True, token=token))

    def paused(self) -> Paused:
        """Return which queues and tasks are paused, and since when."""
        return Paused.of(self._ask(lambda stores: stores.controls()))

    # -- all that match a filter

    def cancel_all(
        self,
        filter: Filter,
        *,
        dry_run: bool = False,
        everything: bool = False,
        progress: Callable[[Bulk], object] | None = None,
    ) -> Bulk:
        """Cancel all scheduled entries that match a filter.

        Parameters
        ----------
        dry_run : bool
            Only count them.
        everything : bool
            Required for a filter that matches all entries.
        progress : Callable[[Bulk], object]
            Called after each batch. Of more than 1,000 entries it is also called while they are
            found, before the first one is changed: then ``found`` grows.
        """

        entries: dict[str, ScheduledTask] = {}

        def change(
            store: Store, queue: str, layout: Layout, found: Sequence[ListedEntry], token: str
        ) -> Sequence[StatusCode]:
            names = [each.name for each in found]
            # A second attempt does not find entries that the first one cancelled.
            entries.update((each._name, each) for each in scheduled_among(store, queue, names))
            dues = [each.place_ms for each in found]
            return store.control.cancel(queue, layout, names, if_due=dues, token=token)

        def report(cancelled: Sequence[ListedEntry]) -> None:
            gone = [entries[each.name] for each in cancelled if each.name in entries]
            note_cancelled(self._session.app, {each.id for each in cancelled}, gone, "cancelled")
            entries.clear()

        return change_all(
            self._session, filter, change, dry_run, everything, progress, after_batch=report
        )

    def reschedule_all(
        self,
        filter: Filter,
        *,
        eta: datetime | str | None = None,
        countdown: float | None = None,
        by: timedelta | float | None = None,
        dry_run: bool = False,
        everything: bool = False,
        progress: Callable[[Bulk], object] | None = None,
    ) -> Bulk:
        """Move all scheduled entries that match a filter; parameters as for :meth:`cancel_all`.

        An entry that somebody else moves at the same time is not moved again (``CHANGED``).
        """
        due = new_due(eta, countdown, by)
        warn_of_naive_eta(self._session.app, eta)
        by_ms = 0 if due is not None else shift_ms(by)

        @cache  # one time for all of them, by the clock of their own Redis
        def due_in(store: Store) -> Due | None:
            return Due(due.ms + store.now_ms()) if due is not None and due.relative else due

        def change(
            store: Store, queue: str, _: Layout, found: Sequence[ListedEntry], token: str
        ) -> Sequence[StatusCode]:
            when = due_in(store)
            moves = [
                (x.name, when or shift_due_or_past(x.place_ms, by_ms), x.place_ms) for x in found
            ]
            return store.control.reschedule(queue, moves, token)

        return change_all(self._session, filter, change, dry_run, everything, progress)

    def run_all_now(
        self,
        filter: Filter,
        *,
        dry_run: bool = False,
        everything: bool = False,
        progress: Callable[[Bulk], object] | None = None,
    ) -> Bulk:
        """Make all scheduled entries that match a filter ready; as for :meth:`cancel_all`."""

        def change(
            store: Store, queue: str, layout: Layout, found: Sequence[ListedEntry], token: str
        ) -> Sequence[StatusCode]:
            names, dues = [each.name for each in found], [each.place_ms for each in found]
            return store.control.run_now(queue, layout, names, if_due=dues, token=token)

        # Each entry goes to the head of the ready list, so the first to be due goes last.
        return change_all(
            self._session, filter, change, dry_run, everything, progress, last_first=True
        )


class _Change:
    """A change of the entries with some ids, in those queues only that have them.

    Keeps their places when Redis is asked again, which does not find what the first request
    cancelled.
    """

    def __init__(self, ids: Sequence[str], queue: str | None, steps: _ChangeSteps) -> None:
        self._ids = ids
        self._queue = queue
        self._steps = steps
        self._found: dict[str, dict[str, Location]] = {}

    def make(self, stores: Stores) -> list[list[StatusCode]]:
        """Make the change; return what became of each of the ids, for each queue."""
        layouts = queues_of(stores, self._queue)
        places = stores.run_each(stores.queues_with(layouts, self._ids), finding(self._ids))
        for name, its in places.items():
            if its:
                self._found.setdefault(name, {}).update({each.name: each for each in its})
        queues = [name for name in layouts if name in self._found]
        codes = stores.run_each(queues, lambda store, name: self._steps(store, name, layouts[name]))
        return [*codes.values()]

    def scheduled(self) -> list[ScheduledTask]:
        """Return those that were scheduled, with messages."""
        return [
            ScheduledTask.of_place(queue, place)
            for queue, places in self._found.items()
            for place in places.values()
            if place.record is not None
        ]


def _check_one_name(queue: str | None, task: str | None) -> None:
    check_name("queue", queue)
    check_name("task", task)
    if (queue is None) == (task is None):
        raise ConfigError(f"queue={queue!r}, task={task!r}: give either a queue or a task name")


def id_of(id: Any) -> str:
    """Return the id of a task, given as an id or as its result."""
    given = getattr(id, "id", id)
    if not isinstance(given, str):
        raise InvalidFilter(f"id={id!r}: expected the id of a task, or its AsyncResult")
    to_bytes(given)
    return given
