"""Public API of the schedule: get, list, cancel, move, run, add, pause."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache, partial
from itertools import chain
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from celery import Signature

from celery_delayq.errors import ConfigError, InvalidETA, InvalidFilter
from celery_delayq.integration.app_warnings import warn_of_naive_eta
from celery_delayq.integration.not_run import has_listeners, note_cancelled
from celery_delayq.model.envelope import Due, due_of_eta
from celery_delayq.model.names import check_name, filter_of
from celery_delayq.model.payload import request_of
from celery_delayq.model.scheduled import (
    Bulk,
    Cursor,
    Filter,
    FilterFields,
    Outcome,
    Page,
    Paused,
    ScheduledTask,
    bound_ms,
    check_page_limit,
    outcome_of,
)
from celery_delayq.model.script_values import (
    IfDue,
    ListedEntry,
    Location,
    ReadyAction,
    StatusCode,
    to_bytes,
)
from celery_delayq.schedule.bulk import (
    CHANGE_BATCH,
    change_all,
    new_due,
    report_cancelled,
    shift_due,
    shift_due_or_past,
    shift_ms,
)
from celery_delayq.schedule.items import Item, ItemOutcome, ManyReport
from celery_delayq.schedule.pages import all_found, found_page
from celery_delayq.schedule.schedule_many import SEND_BATCH, schedule_many
from celery_delayq.store.control import CANCEL_ID_BATCHES
from celery_delayq.store.keys import Layout
from celery_delayq.store.paging import counts_of, during_pauses, queues_of
from celery_delayq.store.scripting.calls import Steps
from celery_delayq.store.session import Session
from celery_delayq.store.store import Store
from celery_delayq.store.stores import Stores, find_steps_of
from celery_delayq.utils.delegation import methods_name_arguments

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: The code of an entry that is due at another time than expected.
_CHANGED: StatusCode = "c"

#: Most entries that a search by argument reads for one page of :meth:`Schedule.list`.
MAX_SEARCHED_ENTRIES = 10_000

#: Attempts to move an entry by an amount while others move it.
MOVE_ATTEMPTS = 5

#: Returns the Redis calls of a change in one queue, from the store, the queue, its layout and a
#: token. The token makes a repetition harmless.
_ChangeSteps = Callable[[Store, str, Layout, str], Steps[list[StatusCode]]]


@methods_name_arguments
class Schedule:
    """Reads and changes scheduled tasks. Called as ``delayq.schedule``."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._ask = session.ask

    def get(self, id: str, *, queue: str | None = None) -> ScheduledTask | None:
        """Return the task with that id; None if it has finished or never existed.

        Of several tasks with one id, the task that is due first is returned.

        Parameters
        ----------
        id : str
            The id of a task, or its ``AsyncResult``.
        queue : str | None
            The only queue to search; None for all queues.

        Raises
        ------
        InvalidFilter
            *id* is neither the id of a task nor its ``AsyncResult``.
        """
        found = self._ask(partial(_find, id_of(id), queue))
        return min(found, key=lambda each: each.due, default=None)

    def find(self, id: str, *, queue: str | None = None) -> Sequence[ScheduledTask]:
        """Return all tasks with that id. A task that is routed to two queues has two entries.

        Parameters
        ----------
        id, queue
            As for :meth:`get`.

        Returns
        -------
        Sequence[ScheduledTask]
            Scheduled, held, ready or running tasks in no order; empty if all have finished.

        Raises
        ------
        InvalidFilter
            *id* is neither the id of a task nor its ``AsyncResult``.
        """
        return self._ask(partial(_find, id_of(id), queue))

    def list(
        self,
        filter: Filter | None = None,
        *,
        limit: int = 100,
        cursor: str | None = None,
        **fields: Unpack[FilterFields],
    ) -> Page[ScheduledTask]:
        """Return a page of scheduled tasks in the order of their due times.

        A task that is added or removed between two pages may be missing. Every other task appears
        once, in the order of due times when the first page was read, and with its present due time.
        This holds if at most one hour passes between two pages.

        A page ends after 4 MB of messages, that of a search by argument after 10,000 entries read.
        So a page with a cursor may have fewer entries than *limit*; of a search, none.

        Parameters
        ----------
        filter : Filter | None
            The tasks to list; None for all.
        limit : int
            Most entries of the page, 1 to 10,000.
        cursor : str | None
            ``Page.cursor`` of the previous page; None for the first page.
        **fields
            Fields of a :class:`~celery_delayq.model.scheduled.Filter`, in its place.

        Raises
        ------
        InvalidCursor
            The cursor is invalid, or belongs to another filter.
        InvalidFilter, InvalidETA
            A part of the filter is wrong.
        ValueError
            *limit* is not in its range.
        """
        check_page_limit(limit)
        filter = filter_of(Filter, filter, fields, Schedule.list)
        after = None if cursor is None else Cursor.unpack(cursor, filter)
        return found_page(self._session, filter, limit, after, MAX_SEARCHED_ENTRIES)

    def entries(
        self, filter: Filter | None = None, *, page: int = 500, **fields: Unpack[FilterFields]
    ) -> Iterator[ScheduledTask]:
        """Return an iterator over all scheduled tasks that match a filter, by due time.

        The first page is read at once. If tasks change meanwhile, each appears once, as in
        :meth:`list`.

        Parameters
        ----------
        filter, **fields
            The tasks to read, as for :meth:`list`.
        page : int
            Number of tasks that are read from Redis at once.
        """
        filter = filter_of(Filter, filter, fields, Schedule.entries)
        return all_found(self._session, filter, page)

    def count(self, filter: Filter | None = None, **fields: Unpack[FilterFields]) -> int:
        """Return the number of scheduled tasks; a task that is routed to two queues counts twice.

        With *priority* or *arg*, all entries are read.

        Parameters
        ----------
        filter, **fields
            The tasks to count, as for :meth:`list`.

        Raises
        ------
        InvalidFilter, InvalidETA
            A part of the filter is wrong.
        """
        filter = filter_of(Filter, filter, fields, Schedule.count)
        if filter.priority is not None or filter.arg is not None:
            return sum(1 for _ in self.entries(filter))
        conditions = filter.conditions(self._session.renames)
        return self._ask(
            lambda stores: sum(
                counts_of(stores, queues_of(stores, filter.queue), *conditions).values()
            )
        )

    def cancel(
        self, id: str, *, queue: str | None = None, if_eta: datetime | str | None = None
    ) -> Outcome:
        """Cancel a task that no worker has yet.

        The task never runs, and its state in the result backend becomes ``REVOKED``. To revoke a
        task that a worker has, use ``AsyncResult.revoke``.

        Parameters
        ----------
        id : str
            The id of a task, or its ``AsyncResult``.
        queue : str | None
            The only queue to search; None for all queues.
        if_eta : datetime | str | None
            Cancel the task only if it is due at this time.

        Returns
        -------
        Outcome
            ``DONE``; ``RUNNING`` if a worker has the task; ``UNKNOWN`` if the task has finished or
            never existed; ``CHANGED`` if it is due at another time than *if_eta*.

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
            The due time of each task in ms. A task with another due time, such as a retry, is
            ``CHANGED``.
        reason : str
            The reason that the result backend stores.
        ready : bool
            Whether to cancel ready tasks too. If not, their outcome is ``READY``.
        """
        return self._cancel(ids, None, if_due, reason, "cancel" if ready else "leave")

    def cancel_revoked(self, ids: Sequence[str]) -> Sequence[Outcome]:
        """Cancel revoked ids. Ready tasks only lose their unique keys: workers refuse them."""
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

        def steps(store: Store, name: str, layout: Layout, token: str) -> Steps[list[StatusCode]]:
            return store.control.cancel_steps(
                name, layout, ids, if_due=if_due, ready=ready, token=token
            )

        change = _Change(ids, queue, steps)
        codes_by_queue = self._ask(change.make)
        outcomes = [outcome_of(codes) for codes in zip(*codes_by_queue.values(), strict=True)]
        outcomes = outcomes or [Outcome.UNKNOWN] * len(ids)
        done = {id for id, it in zip(ids, outcomes, strict=True) if it is Outcome.DONE}
        codes = {queue: dict(zip(ids, its, strict=True)) for queue, its in codes_by_queue.items()}
        # A task that became ready after it was found is reported by a worker.
        tasks = [
            task
            for task in change.scheduled()
            if task.id in done and codes[task.queue].get(task.id) == "d"
        ]
        requests = map(request_of, tasks)
        note_cancelled(self._session.app, requests, done - {task.id for task in tasks}, reason)
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
            The new time: a point in time, seconds from now, or an amount by which to move the task,
            as a timedelta or in seconds; a negative amount moves it earlier.
        if_eta : datetime | str | None
            Move the task only if it is due at this time.

        Returns
        -------
        Outcome
            ``DONE``; ``READY`` or ``RUNNING`` if the task has left the schedule; ``UNKNOWN`` if it
            has finished or never existed; ``CHANGED`` if it is due at another time.

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
            moves = [(id, due, if_due)]
            outcome = self._change(
                id,
                queue,
                lambda store, name, _, token: store.control.reschedule_steps(name, moves, token),
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
        """Make a scheduled task ready at once. It runs next among the tasks of its priority.

        A task whose name is paused runs when the name resumes. The outcome is that of
        :meth:`reschedule`.
        """
        id, if_due = id_of(id), bound_ms("if_eta", if_eta)
        return self._change(
            id,
            queue,
            lambda store, name, layout, token: store.control.run_now_steps(
                name, layout, [id], if_due=if_due, token=token
            ),
        )

    def _change(self, id: str, queue: str | None, steps: _ChangeSteps) -> Outcome:
        """Change entries in all queues."""
        codes = self._ask(_Change([id], queue, steps).make)
        return outcome_of([*chain.from_iterable(codes.values())])

    def _shift(self, id: str, by_ms: int, queue: str | None, if_due: int | None) -> Outcome:
        """Move entries by an amount; try again if another process moved an entry meanwhile.

        An entry is moved only from the due time that was read, so a repeated call changes nothing.
        """
        codes: dict[tuple[str, str], StatusCode] = {}
        for _ in range(MOVE_ATTEMPTS):
            for each in self.find(id, queue=queue):
                entry = each.queue, each._name
                if codes.get(entry, _CHANGED) == _CHANGED:
                    due = due_of_eta(each.due).ms if if_due is None else if_due
                    move = each._name, shift_due(due, by_ms), due
                    codes[entry] = self._move(each.queue, move)
            if _CHANGED not in codes.values() or if_due is not None:
                break
        return outcome_of([*codes.values()])

    def _move(self, queue: str, move: tuple[str, Due, int]) -> StatusCode:
        token = uuid4().hex
        [code] = self._ask(lambda stores: stores.of(queue).control.reschedule(queue, [move], token))
        return code

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
        """Schedule many tasks in batches, with bounded memory.

        The messages are those that ``apply_async`` would send. An invalid item is refused and does
        not stop the others. A batch is sent when it is full, and the next batch fills while Redis
        works. If items come slowly, a batch that is older than 0.1 s is sent with the next item.

        Parameters
        ----------
        items : Iterable
            Calls: an :class:`Item`, a mapping with some of its fields, or a signature such as
            ``add.s(1, 2).set(countdown=60)``. They are read one by one, so a generator of millions
            of items needs little memory.
        task : Task | str | None
            The task of items without a task.
        on_outcome : Callable[[ItemOutcome], None] | None
            Called with the outcome of each item, soon after the item was sent, in no fixed order.
        signals : bool
            Whether Celery makes each message, with its signals, if ``before_task_publish``,
            ``after_task_publish`` or ``task_sent`` have receivers. This is about six times slower.
            With False, Celery makes only the first message of each kind (same task, queue and
            other options), and the changes of receivers to it are in all messages of the kind.
        batch : int
            Number of entries that are sent together.
        **options
            Options of ``apply_async`` for all items; options of an item go before them.

        Returns
        -------
        ManyReport
            The number of items with each outcome.

        Raises
        ------
        ManyFailed
            The iterable raised an error, or Redis was away for longer than
            ``task_publish_retry_policy`` allows; continue from ``report.position``. An item with
            the same id is not stored twice while its task waits or runs.
        ConfigError
            The broker is not one of ours, ``task_always_eager`` is set or ``task_protocol`` is 1.

        Notes
        -----
        No event ``task-sent`` is sent, ``min_delay`` is ignored, and inside a task the new tasks do
        not become its children. Celery makes single messages, six times slower, for serializers
        other than JSON, compression, pydantic arguments, routers that are functions, and tasks or
        apps with an ``apply_async``, ``shadow_name`` or ``send_task`` of their own.

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
        """Pause a queue or a task name: none of its tasks is promoted or started until the resume.

        Tasks that a worker has already fetched still run. Tasks that are published meanwhile wait.
        The former names of the task are paused too (``renamed=`` of ``DelayQ``).

        Parameters
        ----------
        queue, task : str | None
            The name of a queue or of a task: exactly one of them.

        Returns
        -------
        bool
            Whether the queue or task name was not paused before.

        Raises
        ------
        ConfigError
            Both names are given, or none.
        InvalidFilter
            The name is no text, or empty.
        """
        return self._set_pause(queue, task, resume=False)

    def resume(self, *, queue: str | None = None, task: str | None = None) -> bool:
        """Resume a paused queue or task name; its overdue tasks cause no burst.

        The former names of the task are resumed too. Parameters and errors are those of
        :meth:`pause`.

        Returns
        -------
        bool
            Whether the queue or task name was paused.
        """
        return self._set_pause(queue, task, resume=True)

    def _set_pause(self, queue: str | None, task: str | None, *, resume: bool) -> bool:
        check_name("queue", queue)
        check_name("task", task)
        if (queue is None) == (task is None):
            raise ConfigError(f"queue={queue!r}, task={task!r}: give either a queue or a task name")
        token = uuid4().hex
        names = (None,) if task is None else self._session.renames.names(task)

        def set_pause(stores: Stores) -> bool:
            done = [
                stores.pause(queue, name, resume=resume, token=f"{token}-{place}")
                for place, name in enumerate(names)
            ]
            return any(done)

        return self._ask(set_pause)

    def paused(self) -> Paused:
        """Return the paused queues and tasks, with the times of their pauses."""
        return Paused.of(self._ask(lambda stores: stores.controls()))

    # -- all that match a filter

    def cancel_all(
        self,
        filter: Filter | None = None,
        *,
        dry_run: bool = False,
        everything: bool = False,
        progress: Callable[[Bulk], object] | None = None,
        **fields: Unpack[FilterFields],
    ) -> Bulk:
        """Cancel all scheduled entries that match a filter.

        Parameters
        ----------
        filter, **fields
            The entries to cancel, as for :meth:`list`.
        dry_run : bool
            Only count the entries.
        everything : bool
            Required without a condition, which means all entries of all queues.
        progress : Callable[[Bulk], object]
            Called after each batch. With a priority, and by :meth:`run_all_now`, it is also called
            while entries are found, before the first change; then ``found`` grows.
        """
        filter = filter_of(Filter, filter, fields, Schedule.cancel_all)
        with_records = not dry_run and has_listeners(self._session.app)

        def change(
            store: Store, queue: str, layout: Layout, found: Sequence[ListedEntry], token: str
        ) -> Steps[list[StatusCode]]:
            names, dues = [each.name for each in found], [each.listed_due_ms for each in found]
            return store.control.cancel_steps(queue, layout, names, if_due=dues, token=token)

        settled = partial(report_cancelled, self._session.app, with_records)
        return change_all(
            self._session,
            filter,
            change,
            dry_run,
            everything,
            progress,
            batch=CANCEL_ID_BATCHES * CHANGE_BATCH,
            records=with_records,
            settled=settled,
        )

    def reschedule_all(
        self,
        filter: Filter | None = None,
        *,
        eta: datetime | str | None = None,
        countdown: float | None = None,
        by: timedelta | float | None = None,
        dry_run: bool = False,
        everything: bool = False,
        progress: Callable[[Bulk], object] | None = None,
        **fields: Unpack[FilterFields],
    ) -> Bulk:
        """Move all scheduled entries that match a filter; parameters as for :meth:`cancel_all`.

        An entry that another process moves at the same time is not moved again (``CHANGED``).
        """
        filter = filter_of(Filter, filter, fields, Schedule.reschedule_all)
        due = new_due(eta, countdown, by)
        warn_of_naive_eta(self._session.app, eta)
        by_ms = 0 if due is not None else shift_ms(by)

        @cache  # one time for all entries of a store, by the clock of its Redis
        def due_in(store: Store) -> Due | None:
            return Due(due.ms + store.now_ms()) if due is not None and due.relative else due

        def change(
            store: Store, queue: str, _: Layout, found: Sequence[ListedEntry], token: str
        ) -> Steps[list[StatusCode]]:
            when = due_in(store)
            moves = [
                (x.name, when or shift_due_or_past(x.listed_due_ms, by_ms), x.listed_due_ms)
                for x in found
            ]
            return store.control.reschedule_steps(queue, moves, token)

        return change_all(self._session, filter, change, dry_run, everything, progress)

    def run_all_now(
        self,
        filter: Filter | None = None,
        *,
        dry_run: bool = False,
        everything: bool = False,
        progress: Callable[[Bulk], object] | None = None,
        **fields: Unpack[FilterFields],
    ) -> Bulk:
        """Make all scheduled entries that match a filter ready; as for :meth:`cancel_all`."""
        filter = filter_of(Filter, filter, fields, Schedule.run_all_now)

        def change(
            store: Store, queue: str, layout: Layout, found: Sequence[ListedEntry], token: str
        ) -> Steps[list[StatusCode]]:
            names, dues = [each.name for each in found], [each.listed_due_ms for each in found]
            return store.control.run_now_steps(queue, layout, names, if_due=dues, token=token)

        # Each entry goes to the head of the ready list, so the entry that is due first comes last.
        return change_all(
            self._session, filter, change, dry_run, everything, progress, last_first=True
        )


def _find(id: str, queue: str | None, stores: Stores) -> Sequence[ScheduledTask]:
    queues = stores.queues_with(queues_of(stores, queue), [id])
    found = stores.run_each(queues, find_steps_of([id]))
    tasks = [
        ScheduledTask.of_place(name, place) for name, places in found.items() for place in places
    ]
    return during_pauses(stores, tasks)


class _Change:
    """A change of the entries with some ids, in the queues that have them.

    :meth:`make` may be called again after a lost reply. It then reuses the entries found the first
    time, because cancelled entries are not found again.
    """

    def __init__(self, ids: Sequence[str], queue: str | None, steps: _ChangeSteps) -> None:
        self._ids = ids
        self._queue = queue
        self._steps = steps
        self._token = uuid4().hex
        self._found: dict[str, dict[str, Location]] = {}

    def make(self, stores: Stores) -> dict[str, list[StatusCode]]:
        """Make the change; return the status code of each id, by queue."""
        layouts = queues_of(stores, self._queue)
        places = stores.run_each(stores.queues_with(layouts, self._ids), find_steps_of(self._ids))
        for name, its in places.items():
            if its:
                self._found.setdefault(name, {}).update({each.name: each for each in its})
        queues = [name for name in layouts if name in self._found]
        return stores.run_each(
            queues, lambda store, name: self._steps(store, name, layouts[name], self._token)
        )

    def scheduled(self) -> list[ScheduledTask]:
        """Return the found tasks that were scheduled, with their messages."""
        return [
            ScheduledTask.of_place(queue, place)
            for queue, places in self._found.items()
            for place in places.values()
            if place.record is not None
        ]


def id_of(id: Any) -> str:
    """Return the id of a task, given as an id or as its result.

    Raises
    ------
    InvalidFilter
        *id* is neither.
    """
    given = getattr(id, "id", id)
    if not isinstance(given, str):
        raise InvalidFilter(f"id={id!r}: expected the id of a task, or its AsyncResult")
    to_bytes(given)
    return given
