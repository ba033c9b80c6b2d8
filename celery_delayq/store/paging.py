"""Pages of the schedule, of one queue or merged of several."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence

from celery_delayq.model.lookup import FoundPage, Listed, Position, State, Where
from celery_delayq.model.names import check_name
from celery_delayq.model.scheduled import Cursor, Filter, Page, ScheduledTask
from celery_delayq.store.keys import Layout
from celery_delayq.store.schedule import Store, layouts
from celery_delayq.store.shards import Shards

#: Behind every name of an entry: names are text.
_LAST = "\U0010ffff"


def queues_of(shards: Shards, queue: str | None) -> Mapping[str, Layout]:
    """Return the queues to look in: one, or all that the registry knows."""
    check_name("queue", queue)
    if queue is None:
        return layouts(shards.registry())
    store = shards.of(queue)
    return {queue: layouts(store.registry()).get(queue, store.layout)}


def scheduled_among(store: Store, queue: str, ids: Sequence[str]) -> list[ScheduledTask]:
    """Return those of *ids* that are scheduled in a queue, with messages."""
    return [
        ScheduledTask.of_place(queue, place)
        for place in store.control.find(queue, ids)
        if place.record is not None
    ]


def listed_pages(
    ask: Callable[[Callable[[Shards], FoundPage]], FoundPage],
    queue: str,
    where: Where,
    size: int,
    *,
    records: bool = True,
) -> Iterator[list[Listed]]:
    """Yield all entries of a queue that are meant, up to *size* at a time.

    Parameters
    ----------
    ask : Callable
        Calls a function with the stores.
    """
    end: Position | None = None

    def next_page(shards: Shards) -> FoundPage:
        return shards.of(queue).control.page(queue, where, size, end, records=records)

    while True:
        entries, end = ask(next_page)
        yield entries
        if end is None:
            return


def read_page(shards: Shards, filter: Filter, limit: int, after: Cursor | None) -> Page:
    """Merge the pages of all queues: by score, or by due for one task, then by queue and name."""
    where = filter.where()
    names = sorted(queues_of(shards, filter.queue))
    single = len(names) == 1
    found: list[tuple[int, str, Listed]] = []
    ends: list[tuple[int, str, str]] = []
    for name in names:
        begin = _after(name, after, where.task)
        page = shards.of(name).control.page(name, where, limit, begin, records=single)
        found += [(_key(where, each), name, each) for each in page.entries]
        if page.end is not None:
            key, last = page.end.key_and_name
            ends.append((key, name, last))
    # Beyond the first end of a queue nothing is known of it.
    limit_key = min(ends, default=None)
    shown = [
        each
        for each in heapq.nsmallest(limit, found, key=lambda e: (e[0], e[1], e[2].name))
        if limit_key is None or (each[0], each[1], each[2].name) <= limit_key
    ]
    cursor = None
    if len(shown) == limit and len(found) > limit:
        key, name, listed = shown[-1]
        cursor = Cursor(key, name, listed.name).pack(filter)
    elif limit_key is not None:
        cursor = Cursor(*limit_key).pack(filter)
    records = {} if single else _records(shards, shown)
    tasks = []
    for _, name, listed in shown:
        data = listed.record if single else records.get((name, listed.name), b"")
        if data:  # else it has gone since
            state: State = "paused" if listed.score != listed.due_ms else "scheduled"
            tasks.append(ScheduledTask.of_record(name, listed.name, state, listed.due_ms, data))
    return Page(tasks, cursor)


def _key(where: Where, listed: Listed) -> int:
    return listed.score if where.task is None else listed.due_ms


def _after(queue: str, after: Cursor | None, task: str | None) -> Position | None:
    """Return where a queue goes on behind a cursor that may be that of another queue."""
    if after is None:
        return None
    if queue == after.queue:
        return Position.of(after.key, after.name, task)
    return Position.of(after.key if queue < after.queue else after.key - 1, _LAST, task)


def _records(
    shards: Shards, shown: Sequence[tuple[int, str, Listed]]
) -> dict[tuple[str, str], bytes]:
    """Read the records of entries of several queues."""
    found: dict[tuple[str, str], bytes] = {}
    for queue in {name for _, name, _ in shown}:
        names = [listed.name for _, name, listed in shown if name == queue]
        records = shards.of(queue).control.records(queue, names)
        found.update({(queue, name): data for name, data in records.items()})
    return found
