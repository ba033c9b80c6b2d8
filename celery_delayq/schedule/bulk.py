"""Change all entries that match a filter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import cache, partial
from typing import Any
from uuid import uuid4

from celery_delayq.errors import ConfigError, InvalidETA, InvalidFilter
from celery_delayq.integration.not_run import note_cancelled
from celery_delayq.model.envelope import MAX_DUE_MS, Due, due_of_countdown, due_of_eta
from celery_delayq.model.lookup import Listed, StatusCode
from celery_delayq.model.scheduled import OUTCOMES, Bulk, Filter, Outcome, ScheduledTask
from celery_delayq.schedule.reader import ScheduleReader
from celery_delayq.store.keys import Layout
from celery_delayq.store.paging import listed_pages, queues_of, scheduled_among
from celery_delayq.store.schedule import Store
from celery_delayq.store.shards import Shards

#: Entries that one script call of a bulk operation changes.
BATCH = 40

#: Names that are read at a time before.
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
            dues = [each.due_ms for each in found]
            return store.control.cancel(queue, layout, names, if_due=dues, token=token)

        def tell(cancelled: Sequence[Listed]) -> None:
            gone = [entries[each.name] for each in cancelled if each.name in entries]
            note_cancelled(self._session.app, {each.id for each in cancelled}, gone, "cancelled")
            entries.clear()

        return self._change_all(filter, change, dry_run, everything, progress, after=tell)

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
        by_ms = 0 if due is not None else shift_ms(by)

        @cache  # one time for all of them, by the clock of their own Redis
        def due_in(store: Store) -> Due | None:
            return Due(due.ms + store.now_ms()) if due is not None and due.relative else due

        def change(
            store: Store, queue: str, _: Layout, found: Sequence[Listed], token: str
        ) -> Sequence[StatusCode]:
            when = due_in(store)
            moves = [(x.name, when or _shifted(x.due_ms, by_ms), x.due_ms) for x in found]
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
            names, dues = [each.name for each in found], [each.due_ms for each in found]
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
        after: Callable[[Sequence[Listed]], object] | None = None,
    ) -> Bulk:
        """Change matching entries in batches, but for entries whose due has changed meanwhile.

        *after* is called with the changed entries of each batch.
        """
        if not isinstance(filter, Filter):
            raise InvalidFilter(f"filter={filter!r}: expected a Filter(…)")
        if filter.is_everything and not (everything or dry_run):
            raise ConfigError(
                "the filter leaves nothing out: give everything=True if all entries of all queues "
                "are meant"
            )
        bulk = Bulk(dry_run)
        where = filter.where()
        known = self._ask(lambda shards: queues_of(shards, filter.queue))
        if where.step is None:
            bulk.total = self._ask(
                lambda shards: sum(shards.of(x).control.count(x, where) for x in known)
            )
        if dry_run and where.step is None:
            bulk.outcomes[Outcome.DONE] = bulk.total
            return bulk
        # Names first: a moved entry would be found again at its new place.
        found: dict[str, list[Listed]] = {queue: [] for queue in known}
        for queue, those in found.items():
            for page in listed_pages(self._ask, queue, where, FOUND, records=False):
                those += page
                bulk.found += len(page)
                if progress is not None and len(page) == FOUND:
                    progress(bulk)
        bulk.total = bulk.found
        for queue, names in found.items():
            names = names[::-1] if last_first else names
            for start in range(0, len(names), BATCH):
                batch, token = names[start : start + BATCH], uuid4().hex
                codes: Sequence[StatusCode] = ["d"] * len(batch)
                if not dry_run:
                    codes = self._ask(
                        partial(_change_in_store, change, queue, known[queue], batch, token)
                    )
                bulk.outcomes.update(OUTCOMES[code] for code in codes)
                if after is not None and not dry_run:
                    done = zip(batch, codes, strict=True)
                    after([each for each, code in done if code == "d"])
                if progress is not None:
                    progress(bulk)
        return bulk


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
