"""Change all entries that match a filter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import cache, partial
from typing import Any, NamedTuple
from uuid import uuid4

from celery_delayq.errors import ConfigError, InvalidETA, InvalidFilter
from celery_delayq.integration.not_run import note_cancelled
from celery_delayq.integration.worker_checks import warn_of_naive_eta
from celery_delayq.model.envelope import MAX_DUE_MS, Due, due_of_countdown, due_of_eta
from celery_delayq.model.lookup import Listed, Position, StatusCode, Where
from celery_delayq.model.scheduled import OUTCOMES, Bulk, Filter, Outcome, ScheduledTask
from celery_delayq.schedule.reader import ScheduleReader
from celery_delayq.store.keys import Layout
from celery_delayq.store.paging import counts_of, listed_pages, queues_of, scheduled_among
from celery_delayq.store.schedule import Store
from celery_delayq.store.shards import Shards

#: Entries that one script call of a bulk operation changes.
BATCH = 40

#: Entries of a page, which is found first, and whose names are read again to change them.
FOUND = 1000

#: A change of entries of one queue; it returns the outcome of each.
_Change = Callable[[Store, str, Layout, Sequence[Listed], str], Sequence[StatusCode]]


class BulkChanges(ScheduleReader):
    """The part of ``delayq.schedule`` that changes many entries at once."""

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
            store: Store, queue: str, layout: Layout, found: Sequence[Listed], token: str
        ) -> Sequence[StatusCode]:
            names = [each.name for each in found]
            # A second attempt does not find entries that the first one cancelled.
            entries.update((each._name, each) for each in scheduled_among(store, queue, names))
            dues = [each.place_ms for each in found]
            return store.control.cancel(queue, layout, names, if_due=dues, token=token)

        def report(cancelled: Sequence[Listed]) -> None:
            gone = [entries[each.name] for each in cancelled if each.name in entries]
            note_cancelled(self._session.app, {each.id for each in cancelled}, gone, "cancelled")
            entries.clear()

        return self._change_all(filter, change, dry_run, everything, progress, after_batch=report)

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
            store: Store, queue: str, _: Layout, found: Sequence[Listed], token: str
        ) -> Sequence[StatusCode]:
            when = due_in(store)
            moves = [(x.name, when or _shifted(x.place_ms, by_ms), x.place_ms) for x in found]
            return store.control.reschedule(queue, moves, token)

        return self._change_all(filter, change, dry_run, everything, progress)

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
            store: Store, queue: str, layout: Layout, found: Sequence[Listed], token: str
        ) -> Sequence[StatusCode]:
            names, dues = [each.name for each in found], [each.place_ms for each in found]
            return store.control.run_now(queue, layout, names, if_due=dues, token=token)

        # Each entry goes to the head of the ready list, so the first to be due goes last.
        return self._change_all(filter, change, dry_run, everything, progress, last_first=True)

    def _change_all(
        self,
        filter: Filter,
        change: _Change,
        dry_run: bool,
        everything: bool,
        progress: Callable[[Bulk], object] | None,
        *,
        last_first: bool = False,
        after_batch: Callable[[Sequence[Listed]], object] | None = None,
    ) -> Bulk:
        """Change matching entries in batches, but for entries whose due has changed meanwhile.

        *after_batch* is called with the changed entries of each batch.
        """
        if not isinstance(filter, Filter):
            raise InvalidFilter(f"filter={filter!r}: expected a Filter(…)")
        if filter.is_everything and not (everything or dry_run):
            raise ConfigError(
                "the filter leaves nothing out: give everything=True if all entries of all queues "
                "are meant"
            )
        bulk = Bulk(dry_run)
        where, began = filter.where(), self._ask(lambda shards: shards.began_us())
        known = self._ask(lambda shards: queues_of(shards, filter.queue))
        counts = self._ask(lambda shards: counts_of(shards, known, where._replace(step=None)))
        if where.step is None:
            bulk.total = sum(counts.values())
        if dry_run and where.step is None:
            bulk.outcomes[Outcome.DONE] = bulk.total
            return bulk
        queues = [queue for queue, number in counts.items() if number]
        windows = self._windows(where, began, queues, bulk, progress)
        bulk.total = bulk.found
        if last_first:
            windows.reverse()
        last_windows = {window.queue: window for window in windows}
        for window in windows:
            goes_on = last_windows[window.queue] is not window
            names = self._ask(partial(_read_window, where, began, window, goes_on))
            names = names[::-1] if last_first else names
            queue = window.queue
            for start in range(0, len(names), BATCH):
                batch, token = names[start : start + BATCH], uuid4().hex
                codes: Sequence[StatusCode] = ["d"] * len(batch)
                if not dry_run:
                    codes = self._ask(
                        partial(_change_in_store, change, queue, known[queue], batch, token)
                    )
                bulk.outcomes.update(OUTCOMES[code] for code in codes)
                if after_batch is not None and not dry_run:
                    done = zip(batch, codes, strict=True)
                    after_batch([each for each, code in done if code == "d"])
                if progress is not None:
                    progress(bulk)
        return bulk

    def _windows(
        self,
        where: Where,
        began: int,
        queues: Sequence[str],
        bulk: Bulk,
        progress: Callable[[Bulk], object] | None,
    ) -> list[_Window]:
        """Return the windows of all entries that are meant, and count these.

        The names of all of them would take too much memory. An entry that is moved meanwhile stays
        in its window.
        """
        windows: list[_Window] = []
        for queue in queues:
            start: Position | None = None
            for page in listed_pages(
                self._ask, queue, where, FOUND, began=began, records=False, goes_on=True
            ):
                windows.append(_Window(queue, start, page.end))
                start = page.end
                bulk.found += len(page.entries)
                if progress is not None and len(page.entries) == FOUND:
                    progress(bulk)
        return windows


class _Window(NamedTuple):
    """A part of the schedule of a queue: behind one place, and not behind another one."""

    queue: str
    start: Position | None
    end: Position | None


def _read_window(
    where: Where, began: int, window: _Window, goes_on: bool, shards: Shards
) -> list[Listed]:
    position = window.start
    options: dict[str, Any] = {"records": False, "began": began, "goes_on": goes_on}
    found: list[Listed] = []
    while True:
        control = shards.of(window.queue).control
        page = control.page(window.queue, where, FOUND, position, window.end, **options)
        found += page.entries
        position = page.end
        if position is None:
            return found


def _change_in_store(
    change: _Change,
    queue: str,
    layout: Layout,
    batch: Sequence[Listed],
    token: str,
    shards: Shards,
) -> Sequence[StatusCode]:
    return change(shards.of(queue), queue, layout, batch, token)


def new_due(
    eta: datetime | str | None, countdown: float | None, by: timedelta | float | None
) -> Due | None:
    """Return when something is to be due, None when it is to be moved by an amount."""
    if sum(each is not None for each in (eta, countdown, by)) != 1:
        raise InvalidETA(
            f"eta={eta!r}, countdown={countdown!r}, by={by!r}: give one of them, and not the others"
        )
    if by is not None:
        return None
    return due_of_eta(eta) if eta is not None else due_of_countdown(countdown)


def shifted(due_ms: int, by_ms: int) -> Due:
    """Return a due that is moved by so many ms.

    Raises
    ------
    InvalidETA
        It leads past the year 9999.
    """
    if due_ms + by_ms > MAX_DUE_MS:
        raise InvalidETA(f"{by_ms / 1000:g} s later leads past the year 9999")
    return Due(due_ms + by_ms)


def _shifted(due_ms: int, by_ms: int) -> Due:
    """Return a due moved by so many ms; 0, which has passed, where that is after the year 9999."""
    return Due(due_ms + by_ms if due_ms + by_ms <= MAX_DUE_MS else 0)


def shift_ms(by: Any) -> int:
    seconds = by.total_seconds() if isinstance(by, timedelta) else by
    return due_of_countdown(seconds, "by").ms
