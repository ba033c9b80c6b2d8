"""Reading the schedule: get, find, list, count."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from celery_delayq.errors import InvalidFilter
from celery_delayq.model.lookup import to_bytes
from celery_delayq.model.scheduled import Cursor, Filter, Page, ScheduledTask
from celery_delayq.store.paging import counts_of, queues_of, read_page
from celery_delayq.store.session import Session
from celery_delayq.store.shards import Shards


class ScheduleReader:
    """The part of ``delayq.schedule`` that changes nothing."""

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

        def ask(shards: Shards) -> Sequence[ScheduledTask]:
            found = shards.find_each(queues_of(shards, queue), [id])
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
        return self._ask(lambda shards: read_page(shards, filter, limit, after))

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
            return self._ask(lambda shards: read_page(shards, wanted, page, after))

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
            lambda shards: sum(counts_of(shards, queues_of(shards, queue), where).values())
        )


def id_of(id: Any) -> str:
    """Return the id of a task, given as an id or as its result."""
    given = getattr(id, "id", id)
    if not isinstance(given, str):
        raise InvalidFilter(f"id={id!r}: expected the id of a task, or its AsyncResult")
    to_bytes(given)
    return given
