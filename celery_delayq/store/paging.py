"""Pages of the schedule: of one queue, or merged from several."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from celery_delayq.model.arguments.search import ArgumentSearch
from celery_delayq.model.names import NO_RENAMES, Renames, check_name
from celery_delayq.model.scheduled import Cursor, Filter, Page, ScheduledTask
from celery_delayq.model.script_values import (
    EntryCondition,
    FoundPage,
    ListedEntry,
    Position,
    State,
)
from celery_delayq.store.control import MAX_PAGE_BYTES
from celery_delayq.store.keys import Layout
from celery_delayq.store.scan import PAGE_FIELDS
from celery_delayq.store.scripting.calls import Steps
from celery_delayq.store.store import Store, layouts
from celery_delayq.store.stores import Stores

T = TypeVar("T")

#: Calls a function with the stores.
Ask = Callable[[Callable[[Stores], T]], T]

#: A text that sorts after every name of an entry.
_MAX_NAME = "\U0010ffff"

#: Entries that a search by argument reads for one page.
SEARCH_ENTRIES = 500

#: Least number of names that the first round reads of each of several queues; most rounds.
MIN_NAMES, MAX_ROUNDS = 4, 8


def queues_of(stores: Stores, queue: str | None) -> Mapping[str, Layout]:
    """Return layouts by queue: of one queue, or of all queues of the registry."""
    check_name("queue", queue)
    if queue is None:
        return layouts(stores.registry())
    store = stores.of(queue)
    return {queue: layouts(store.registered(queue)).get(queue, store.layout)}


def counts_of(stores: Stores, queues: Iterable[str], *conditions: EntryCondition) -> dict[str, int]:
    """Return the number of entries of each queue, of any priority.

    Parameters
    ----------
    *conditions
        Conditions of which no entry meets two.
    """

    def steps(store: Store, queue: str) -> Steps[int]:
        number = 0
        for where in conditions:
            number += yield from store.control.count_steps(queue, where._replace(step=None))
        return number

    return stores.run_each(queues, steps)


def with_entries(stores: Stores, queues: Iterable[str], *conditions: EntryCondition) -> list[str]:
    """Return the queues that have entries of any priority."""
    counts = counts_of(stores, queues, *conditions)
    return [queue for queue, number in counts.items() if number]


def scheduled_among(store: Store, queue: str, ids: Sequence[str]) -> list[ScheduledTask]:
    """Return the scheduled tasks of a queue that have one of *ids*, with messages."""
    return [
        ScheduledTask.of_place(queue, place)
        for place in store.control.find(queue, ids)
        if place.record is not None
    ]


def during_pauses(stores: Stores, tasks: list[ScheduledTask]) -> list[ScheduledTask]:
    """Return tasks with their states: a held one is paused if its name is paused."""
    if all(each.state != "held" for each in tasks):
        return tasks
    paused = stores.controls().tasks
    return [each.during_pauses(paused) for each in tasks]


def listed_pages(
    ask: Ask[FoundPage],
    queue: str,
    where: EntryCondition,
    size: int,
    *,
    began: int,
    records: bool = True,
    goes_on: bool = False,
) -> Iterator[FoundPage]:
    """Yield all entries of a queue that match *where*, each once, up to *size* at a time.

    Parameters
    ----------
    ask : Callable
        Calls a function with the stores.
    began : int
        The time at which the reading began (:meth:`Stores.began_us`).
    goes_on : bool
        Whether the caller reads the entries once more after the last page.
    """
    end: Position | None = None
    last_due: int | None = None

    def next_page(stores: Stores) -> FoundPage:
        options: dict[str, Any] = {"records": records, "began": began, "goes_on": goes_on}
        return stores.of(queue).control.page(queue, where.due_by(last_due), size, end, **options)

    while True:
        page = ask(next_page)
        last_due = last_due if end is not None else page.last_due
        yield page
        end = page.end
        if end is None:
            return


#: A queue, and the name of a task; None for all tasks.
_Stream = tuple[str, str | None]


@dataclass(slots=True)
class _Found:
    """The entries read from a stream, and the position after which there are more."""

    entries: list[ListedEntry]
    end: Position | None


def read_page(
    stores: Stores,
    filter: Filter,
    limit: int,
    after: Cursor | None,
    renames: Renames = NO_RENAMES,
    search: ArgumentSearch | None = None,
) -> Page[ScheduledTask]:
    """Return a page merged from all queues: sorted by due, then by queue and name.

    With *search*, up to :data:`SEARCH_ENTRIES` are read, and those that match are returned.
    """
    if after is None:
        after = Cursor.first(stores.began_us())
    most, limit = limit, limit if search is None else SEARCH_ENTRIES
    conditions = [where.due_by(after.last_due) for where in filter.without_arg.conditions(renames)]
    names = sorted(queues_of(stores, filter.queue))
    single = len(names) * len(conditions) == 1
    found, last_due = _read(stores, conditions, names, limit, after)
    listed = {
        (each.listed_due_ms, queue, each.name): each
        for (queue, _), its in found.items()
        for each in its.entries
    }
    ends = [
        (due, queue, name)
        for (queue, _), its in found.items()
        if its.end is not None
        for due, name in [its.end.key_and_name]
    ]
    # After this place, the entries of at least one stream are unknown.
    known_until = min(ends, default=None)
    shown = [
        place
        for place in heapq.nsmallest(limit, listed)
        if known_until is None or place <= known_until
    ]
    end = shown[-1] if len(shown) == limit and len(listed) > limit else known_until
    records = [listed[place].record for place in shown] if single else _records(stores, shown)
    tasks: list[ScheduledTask] = []
    looked = unknown = 0
    for place, data in zip(shown, records, strict=False):
        if len(tasks) == most:
            break
        looked += 1
        if data:  # without data, the entry has left the schedule meanwhile
            each = listed[place]
            state: State = "paused" if each.score != each.due_ms else "scheduled"
            task = ScheduledTask.of_record(place[1], each.name, state, each.due_ms, data)
            is_meant = search is None or search.matches(task.message)
            unknown += is_meant is None
            if is_meant:
                tasks.append(task)
    if looked < len(shown):
        end = shown[looked - 1]
    cursor = None
    if end is not None:
        last_due = last_due if after.last_due is None else after.last_due
        cursor = Cursor(*end, after.began, last_due).pack(filter)
    return Page(during_pauses(stores, tasks), cursor, looked, unknown)


def _read(
    stores: Stores,
    conditions: Sequence[EntryCondition],
    names: Sequence[str],
    limit: int,
    after: Cursor,
) -> tuple[dict[_Stream, _Found], int | None]:
    """Return the first entries of each stream, and the highest due of all streams.

    There is a stream for each queue and condition. The first round reads a few entries of each
    stream. The next rounds read more of the streams whose entries may belong to the page.
    """
    number = len(names) * len(conditions)
    single = number == 1
    found: dict[_Stream, _Found] = {}
    size = limit if single else min(limit, max(MIN_NAMES, 2 * limit // max(1, number)))
    tasks = [where.task for where in conditions]
    begin = {(name, task): _after(name, after, task) for name in names for task in tasks}
    last_due: int | None = None
    for _ in range(1 if single else MAX_ROUNDS):
        options = {"records": single, "began": after.began, "goes_on": not single}
        for where in conditions:
            starts = {name: start for (name, task), start in begin.items() if task == where.task}
            pages = stores.run_each(starts, partial(_page, where, size, starts, options))
            for name, page in pages.items():
                its = found.setdefault((name, where.task), _Found([], None))
                its.entries += page.entries
                its.end = page.end
                if page.last_due is not None:
                    last_due = max(page.last_due, last_due or page.last_due)
        # Of each stream, all entries before the last entry of the page must be known.
        keys = heapq.nsmallest(
            limit, (e.listed_due_ms for its in found.values() for e in its.entries)
        )
        begin = {
            stream: its.end
            for stream, its in found.items()
            if its.end is not None
            and (len(keys) < limit or its.end.key_and_name[0] <= keys[-1])
            and len(its.entries) < limit
        }
        if not begin:
            break
        size = min(limit, 4 * size)
    return found, last_due


def _page(
    where: EntryCondition,
    size: int,
    begin: Mapping[str, Position | None],
    options: Mapping[str, Any],
    store: Store,
    queue: str,
) -> Steps[FoundPage]:
    return store.control.page_steps(queue, where, size, begin[queue], **options)


def _after(queue: str, after: Cursor, task: str | None) -> Position | None:
    """Return the position in a queue that corresponds to a cursor, maybe of another queue."""
    if after.is_first:
        return None
    if queue == after.queue:
        return Position.of(after.key, after.name, task)
    return Position.of(after.key if queue < after.queue else after.key - 1, _MAX_NAME, task)


def _records(stores: Stores, shown: Sequence[tuple[int, str, str]]) -> list[bytes | None]:
    """Read the records of the first of *shown* (due, queue, name): of all, or up to
    :data:`MAX_PAGE_BYTES`.

    A round reads about 1 MB of each queue. A record is None if the entry has left the schedule.
    """
    records: list[bytes | None] = []
    size = 0
    while len(records) < len(shown) and size < MAX_PAGE_BYTES:
        some = shown[len(records) : len(records) + PAGE_FIELDS]
        names: dict[str, list[str]] = {}
        for _, queue, name in some:
            names.setdefault(queue, []).append(name)
        found = stores.run_each(names, partial(_first_records, names))
        unused = {queue: deque(its) for queue, its in found.items()}
        for _, queue, _ in some:
            if not unused[queue] or size >= MAX_PAGE_BYTES:
                break
            records.append(unused[queue].popleft())
            size += len(records[-1] or b"")
    return records


def _first_records(
    names: Mapping[str, Sequence[str]], store: Store, queue: str
) -> Steps[list[bytes | None]]:
    return store.control.records_steps(queue, names[queue])
