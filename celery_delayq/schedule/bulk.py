"""Change all entries that match a filter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple
from uuid import uuid4

from celery_delayq.errors import ConfigError, InvalidETA, InvalidFilter
from celery_delayq.model.envelope import MAX_DUE_MS, Due, due_of_countdown, due_of_eta
from celery_delayq.model.lookup import EntryCondition, ListedEntry, Position, StatusCode
from celery_delayq.model.scheduled import OUTCOMES, Bulk, Filter, Outcome
from celery_delayq.store.keys import Layout
from celery_delayq.store.paging import counts_of, listed_pages, queues_of
from celery_delayq.store.schedule import Store
from celery_delayq.store.session import Session
from celery_delayq.store.stores import Stores
from celery_delayq.utils.portions import batches

#: Entries that one script call of a bulk operation changes.
CHANGE_BATCH = 40

#: Entries of a page, which is found first, and whose names are read again to change them.
PAGE_ENTRIES = 1000

#: A change of entries of one queue; it returns the outcome of each.
Change = Callable[[Store, str, Layout, Sequence[ListedEntry], str], Sequence[StatusCode]]


def change_all(
    session: Session,
    filter: Filter,
    change: Change,
    dry_run: bool,
    everything: bool,
    progress: Callable[[Bulk], object] | None,
    *,
    last_first: bool = False,
    after_batch: Callable[[Sequence[ListedEntry]], object] | None = None,
) -> Bulk:
    """Change the entries that match a filter, in batches.

    All matching entries are found first. An entry whose due time changes after that is left
    unchanged.

    Parameters
    ----------
    last_first : bool
        Change the entries in the reverse order of their due times.
    after_batch : Callable[[Sequence[ListedEntry]], object] | None
        Called with the changed entries of each batch.
    """
    if not isinstance(filter, Filter):
        raise InvalidFilter(f"filter={filter!r}: expected a Filter(…)")
    if filter.is_everything and not (everything or dry_run):
        raise ConfigError(
            "the filter leaves nothing out: give everything=True if all entries of all queues "
            "are meant"
        )
    bulk, report = Bulk(dry_run), progress or bool
    conditions, began = filter.conditions(session.renames), session.ask(Stores.began_us)
    known = session.ask(lambda stores: queues_of(stores, filter.queue))
    counts = session.ask(lambda stores: counts_of(stores, known, *conditions))
    if filter.priority is None:
        bulk.total = sum(counts.values())
    if dry_run and filter.priority is None:
        bulk.outcomes[Outcome.DONE] = bulk.total
        return bulk
    queues = [queue for queue, number in counts.items() if number]
    windows = [
        window
        for where in conditions
        for window in _windows(session, where, began, queues, bulk, report)
    ]
    bulk.total = bulk.found
    if last_first:
        windows.reverse()
    last_windows = {(window.queue, window.where): window for window in windows}
    for window in windows:
        goes_on = last_windows[window.queue, window.where] is not window
        found = session.ask(partial(_read_window, began, window, goes_on))
        layout = known[window.queue]
        for batch in batches(found[::-1] if last_first else found, CHANGE_BATCH):
            codes: Sequence[StatusCode] = ["d"] * len(batch)
            if not dry_run:
                make = partial(_change_in_store, change, window.queue, layout, batch, uuid4().hex)
                codes = session.ask(make)
            bulk.outcomes.update(OUTCOMES[code] for code in codes)
            if after_batch is not None and not dry_run:
                done = zip(batch, codes, strict=True)
                after_batch([each for each, code in done if code == "d"])
            report(bulk)
    return bulk


def _windows(
    session: Session,
    where: EntryCondition,
    began: int,
    queues: Sequence[str],
    bulk: Bulk,
    report: Callable[[Bulk], object],
) -> list[_Window]:
    """Return the windows that contain all matching entries, and count the entries.

    A list of all names would take too much memory. An entry that is moved after *began* stays in
    its window.
    """
    windows: list[_Window] = []
    for queue in queues:
        start: Position | None = None
        for page in listed_pages(
            session.ask, queue, where, PAGE_ENTRIES, began=began, records=False, goes_on=True
        ):
            windows.append(_Window(queue, where, start, page.end))
            start = page.end
            bulk.found += len(page.entries)
            if len(page.entries) == PAGE_ENTRIES:
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


def _read_window(began: int, window: _Window, goes_on: bool, stores: Stores) -> list[ListedEntry]:
    position, where = window.start, window.where
    options: dict[str, Any] = {"records": False, "began": began, "goes_on": goes_on}
    found: list[ListedEntry] = []
    while True:
        control = stores.of(window.queue).control
        page = control.page(window.queue, where, PAGE_ENTRIES, position, window.end, **options)
        found += page.entries
        position = page.end
        if position is None:
            return found


def _change_in_store(
    change: Change,
    queue: str,
    layout: Layout,
    batch: Sequence[ListedEntry],
    token: str,
    stores: Stores,
) -> Sequence[StatusCode]:
    return change(stores.of(queue), queue, layout, batch, token)


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
