"""Change all entries that match a filter."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple
from uuid import uuid4

from celery_delayq.errors import ConfigError, InvalidETA
from celery_delayq.integration.not_run import note_cancelled, note_cancelled_ids
from celery_delayq.model.arguments.search import ArgumentSearch
from celery_delayq.model.envelope import MAX_DUE_MS, Due, due_of_countdown, due_of_eta
from celery_delayq.model.payload import request_of_record
from celery_delayq.model.scheduled import OUTCOMES, Bulk, Filter, Outcome
from celery_delayq.model.script_values import (
    EntryCondition,
    FoundPage,
    ListedEntry,
    Position,
    StatusCode,
)
from celery_delayq.schedule.pages import search_of
from celery_delayq.store.keys import Layout
from celery_delayq.store.paging import SEARCH_ENTRIES, counts_of, listed_pages, queues_of
from celery_delayq.store.scan import PAGE_NAMES
from celery_delayq.store.scripting.calls import Steps
from celery_delayq.store.scripting.pipelining import PipelinedCalls
from celery_delayq.store.session import Session
from celery_delayq.store.store import Store
from celery_delayq.store.stores import Stores
from celery_delayq.utils.portions import batches

#: Entries that a bulk operation changes together.
CHANGE_BATCH = 40

#: Entries of a page, which is found first, and whose names are read again to change them.
PAGE_ENTRIES = 1000

#: A change of entries of one queue: its calls, from the store, the queue, its layout, the entries
#: and a token. The result is the outcome of each entry.
Change = Callable[[Store, str, Layout, Sequence[ListedEntry], str], Steps[list[StatusCode]]]

#: Called with a queue, changed entries of it, and the outcome of each.
Settled = Callable[[str, Sequence[ListedEntry], Sequence[StatusCode]], object]


def change_all(
    session: Session,
    filter: Filter,
    change: Change,
    dry_run: bool,
    everything: bool,
    progress: Callable[[Bulk], object] | None,
    *,
    last_first: bool = False,
    batch: int = CHANGE_BATCH,
    records: bool = False,
    settled: Settled | None = None,
) -> Bulk:
    """Change the entries that match a filter, in batches.

    An entry whose due time changes after the beginning is left unchanged. With a priority or
    *last_first*, all matching entries are found first. While Redis runs the first call of a batch,
    the next batch is read and the former one is settled: :meth:`PipelinedCalls.send_all`.

    Parameters
    ----------
    last_first : bool
        Change the entries in the reverse order of their due times: a batch is settled before the
        next one is sent.
    batch : int
        Entries that are changed together.
    records : bool
        Whether *settled* gets entries with their records.
    settled : Settled | None
        Called after each batch, while Redis changes the next batch.
    """
    if filter.is_everything and not (everything or dry_run):
        raise ConfigError(
            "the filter leaves nothing out: give everything=True if all entries of all queues "
            "are meant"
        )
    bulk, report = Bulk(dry_run), progress or bool
    search, began = search_of(session, filter), session.ask(Stores.began_us)
    conditions = filter.without_arg.conditions(session.renames)
    known = session.ask(lambda stores: queues_of(stores, filter.queue))
    counts = session.ask(lambda stores: counts_of(stores, known, *conditions))
    is_counted = filter.priority is None and search is None
    if is_counted:
        bulk.total = sum(counts.values())
    if dry_run and is_counted:
        bulk.outcomes[Outcome.DONE] = bulk.total
        return bulk
    queues = [queue for queue, number in counts.items() if number]
    if filter.priority is None and not last_first:
        windows = [_Window(queue, where, None, None) for where in conditions for queue in queues]
        bulk.total = sum(counts.values())
        bulk.found = 0 if search is not None else bulk.total
    else:
        windows = [
            window
            for where in conditions
            for window in _windows(session, where, began, queues, bulk, report, search)
        ]
        bulk.total = bulk.found
    if last_first:
        windows.reverse()
    last_windows = {window.queue: window for window in windows}

    def matching(entries: Sequence[ListedEntry]) -> Sequence[ListedEntry]:
        found, unknown = _matching(entries, search)
        bulk.unknown += unknown
        return found

    def settle(queue: str, some: Sequence[ListedEntry], codes: Sequence[StatusCode]) -> None:
        bulk.outcomes.update(OUTCOMES[code] for code in codes)
        if settled is not None and not dry_run:
            settled(queue, some, codes)
        report(bulk)

    limit = SEARCH_ENTRIES if search is not None else batch if records else PAGE_NAMES
    options = {"limit": limit, "began": began, "records": records or search is not None}
    with PipelinedCalls(session.ask) as reads, PipelinedCalls(session.ask) as changes:
        for window in windows:
            queue, goes_on = window.queue, last_windows[window.queue] is not window
            parts = _parts(session, reads, window, {**options, "goes_on": goes_on})
            found = chain.from_iterable(map(matching, parts))
            if last_first:
                found = chain([*found][::-1])
            for some in batches(found, batch):
                if dry_run:
                    settle(queue, some, ["d"] * len(some))
                    continue
                store = session.ask(partial(_store_of, queue))
                steps = change(store, queue, known[queue], some, uuid4().hex)
                if last_first:  # a batch of large messages takes further calls
                    changes.settle()
                changes.send_steps(queue, steps, partial(settle, queue, some))
    return bulk


def _windows(
    session: Session,
    where: EntryCondition,
    began: int,
    queues: Sequence[str],
    bulk: Bulk,
    report: Callable[[Bulk], object],
    search: ArgumentSearch | None,
) -> list[_Window]:
    """Return the windows that contain all matching entries, and count the entries.

    A list of all names would take too much memory. An entry that is moved after *began* stays in
    its window.
    """
    windows: list[_Window] = []
    for queue in queues:
        start: Position | None = None
        options: dict[str, Any] = {"records": search is not None, "goes_on": True}
        for page in listed_pages(session.ask, queue, where, PAGE_ENTRIES, began=began, **options):
            windows.append(_Window(queue, where, start, page.end))
            start = page.end
            bulk.found += len(_matching(page.entries, search)[0])
            if page.end is not None:
                report(bulk)
    return windows


class _Window(NamedTuple):
    """A part of the schedule of a queue: entries that meet a condition, behind the position
    *start*, up to *end*.
    """

    queue: str
    where: EntryCondition
    start: Position | None
    end: Position | None


def _matching(
    entries: Sequence[ListedEntry], search: ArgumentSearch | None
) -> tuple[Sequence[ListedEntry], int]:
    """Return the entries that match a search, if there is one, and how many nobody can tell of."""
    return (entries, 0) if search is None else search.select(entries, attrgetter("record"))


def _parts(
    session: Session, reads: PipelinedCalls, window: _Window, options: Mapping[str, Any]
) -> Iterator[list[ListedEntry]]:
    """Yield the entries of a window. The next part is read while the caller handles a part.

    A window of a whole queue ends with the last due at the first part, so that new entries do not
    make it endless. *options* are those of
    :meth:`~celery_delayq.store.control.ControlStore.page_steps`.
    """
    pages = deque[FoundPage]()
    where = window.where

    def send(after: Position | None) -> None:
        control = session.ask(partial(_store_of, window.queue)).control
        steps = control.page_steps(window.queue, where, after=after, upto=window.end, **options)
        reads.send_steps(window.queue, steps, pages.append)

    send(window.start)
    is_first = window.start is None
    while reads.settle():
        page = pages.popleft()
        if is_first:
            where, is_first = where.due_by(page.last_due), False
        if page.end is not None:
            send(page.end)
        yield page.entries


def _store_of(queue: str, stores: Stores) -> Store:
    return stores.of(queue)


def report_cancelled(
    app: Any,
    with_records: bool,
    _queue: str,
    found: Sequence[ListedEntry],
    codes: Sequence[StatusCode],
) -> None:
    """Report the cancelled entries of a batch, of which each has a code.

    Parameters
    ----------
    with_records : bool
        Whether the entries have records; without them only events are sent.
    """
    scheduled = [each for each, code in zip(found, codes, strict=True) if code == "d"]
    if not with_records:
        note_cancelled_ids(app, [each.id for each in scheduled])
        return
    requests = [request_of_record(each.id, each.record) for each in scheduled]
    ready = [each.id for each, code in zip(found, codes, strict=True) if code == "m"]
    note_cancelled(app, requests, ready, "cancelled")


def new_due(
    eta: datetime | str | None, countdown: float | None, by: timedelta | float | None
) -> Due | None:
    """Return the new due time; None if entries are moved by an amount.

    Raises
    ------
    InvalidETA
        The time is invalid, or not exactly one of the arguments is given.
    """
    if sum(each is not None for each in (eta, countdown, by)) != 1:
        raise InvalidETA(
            f"eta={eta!r}, countdown={countdown!r}, by={by!r}: give one of them, and not the others"
        )
    if by is not None:
        return None
    return due_of_eta(eta) if eta is not None else due_of_countdown(countdown)


def shift_due(due_ms: int, by_ms: int) -> Due:
    """Return a due time moved by *by_ms*.

    Raises
    ------
    InvalidETA
        The new time is after the year 9999.
    """
    if due_ms + by_ms > MAX_DUE_MS:
        raise InvalidETA(f"by={by_ms / 1000:g} s: the new time is after the year 9999")
    return Due(due_ms + by_ms)


def shift_due_or_past(due_ms: int, by_ms: int) -> Due:
    """Return a due time moved by *by_ms*; 0, a time in the past, if it is after the year 9999."""
    return Due(due_ms + by_ms if due_ms + by_ms <= MAX_DUE_MS else 0)


def shift_ms(by: Any) -> int:
    """Return an amount of time in ms; raises InvalidETA for no number of seconds."""
    seconds = by.total_seconds() if isinstance(by, timedelta) else by
    return due_of_countdown(seconds, "by").ms
