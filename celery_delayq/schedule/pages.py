"""Pages of the schedule by a filter, also by arguments with the tasks of an app."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from kombu.serialization import prepare_accept_content

from celery_delayq.model.arguments.search import ArgumentSearch
from celery_delayq.model.compat import ALWAYS_ACCEPTED
from celery_delayq.model.dead_letter import DeadFilter
from celery_delayq.model.scheduled import Cursor, Filter, Page, ScheduledTask
from celery_delayq.store.paging import read_page
from celery_delayq.store.session import Session


def search_of(session: Session, filter: Filter | DeadFilter) -> ArgumentSearch | None:
    """Return the search for the arguments of a filter; None if the filter has none."""
    if filter.arg is None:
        return None
    app, accept = session.app, set[str]()
    app.finalize()
    if filter.unpickle:
        accept = {*ALWAYS_ACCEPTED, *prepare_accept_content(app.conf.accept_content or ())}
    return ArgumentSearch(filter.arg, session.renames.with_former_names(app.tasks), accept)


def found_page(
    session: Session, filter: Filter, limit: int, after: Cursor | None, most: int = 0
) -> Page[ScheduledTask]:
    """Return a page of the schedule.

    With arguments, entries are read until *limit* of them match, or *most* or more are read; 0
    reads once.
    """
    search = search_of(session, filter)
    found: Page[ScheduledTask] = Page([], None)
    while True:
        rest = limit - len(found)
        read = partial(
            read_page,
            filter=filter,
            limit=rest,
            after=after,
            renames=session.renames,
            search=search,
        )
        page = session.ask(read)
        entries = [*found.entries, *page.entries]
        found = Page(entries, page.cursor, found.looked + page.looked, found.unknown + page.unknown)
        is_full = search is None or len(found) == limit or found.looked >= most
        if is_full or page.cursor is None:
            return found
        after = Cursor.unpack(page.cursor, filter)


def all_found(session: Session, filter: Filter, size: int) -> Iterator[ScheduledTask]:
    """Return an iterator over all entries; pages of *size* are read, the first one at once."""

    def rest(page: Page[ScheduledTask]) -> Iterator[ScheduledTask]:
        yield from page
        while page.cursor is not None:
            page = found_page(session, filter, size, Cursor.unpack(page.cursor, filter))
            yield from page

    return rest(found_page(session, filter, size, None))
