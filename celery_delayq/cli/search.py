"""The search for scheduled tasks by their arguments: page by page, with a bar, resumable."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any

import click

from celery_delayq.app import DelayQ
from celery_delayq.cli import screen
from celery_delayq.model.arguments.search import argument_names
from celery_delayq.model.scheduled import Cursor, Filter, Page, ScheduledTask, moment
from celery_delayq.schedule.search import found_page
from celery_delayq.store.paging import SEARCH_ENTRIES
from celery_delayq.utils.text import did_you_mean, spelled


class Search:
    """Reads the pages of a search. Ctrl-C ends it, and *cursor* is where it goes on.

    Parameters
    ----------
    cursor : str | None
        Where to begin; None for the first entry.
    most : int | None
        Most entries to find; None for all.
    held : bool
        Find only entries that are held. They are due, so later entries are not read.
    """

    def __init__(
        self,
        delayq: DelayQ,
        filter: Filter,
        cursor: str | None = None,
        most: int | None = None,
        *,
        held: bool = False,
    ) -> None:
        self._delayq = delayq
        self._held_until = screen.now_of(delayq) if held else None
        self._filter = filter
        self._most = most
        self.cursor = cursor
        self.found = self.looked = self.unknown = 0
        self.is_interrupted = False
        prepare_search(delayq, filter)
        place = (due_only(delayq, filter) if held else filter).without_arg
        self.total = delayq.count(place) if place.priority is None and cursor is None else None

    def pages(self, bar: Callable[..., None] | None = None) -> Iterator[Page]:
        """Yield the pages that have entries.

        Without a *bar*, one appears while the search for the next page takes long.
        """
        if bar is not None:
            return self._pages(bar)
        return screen.with_bar(self._pages, description="search")

    def _pages(self, bar: Callable[..., None]) -> Iterator[Page]:
        with self._until_interrupt():
            while not self.is_interrupted and (self._most is None or self.found < self._most):
                page = self._next()
                self.cursor = page.cursor
                bar(self.total, self.looked)
                if page.entries:
                    yield page
                    sys.stdout.flush()
                if page.cursor is None:
                    return

    @contextmanager
    def _until_interrupt(self) -> Iterator[None]:
        """Let Ctrl-C end the search after the current page; a second one ends it at once."""
        before = signal.getsignal(signal.SIGINT)

        def note(*_: Any) -> None:
            self.is_interrupted = True
            signal.signal(signal.SIGINT, before)

        if before is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, note)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _next(self) -> Page:
        most = SEARCH_ENTRIES if self._most is None else self._most - self.found
        after = None if self.cursor is None else Cursor.unpack(self.cursor, self._filter)
        page = found_page(self._delayq.session, self._filter, most, after)
        if self._held_until is not None:
            page = self._held_page(page, self._held_until)
        self.found += len(page)
        self.looked += page.looked
        self.unknown += page.unknown
        return page

    def _held_page(self, page: Page, now: datetime) -> Page:
        cursor = page.cursor
        if cursor is not None and moment(Cursor.unpack(cursor, self._filter).key) > now:
            cursor = None
        return replace(page, entries=[*filter(is_held, page)], cursor=cursor)

    def finish(self, go_on: str = "") -> None:
        """Print what was not found for sure; end the command if Ctrl-C has ended the search.

        Parameters
        ----------
        go_on : str
            The command that goes on with the search.
        """
        note_unknown(self.unknown)
        if self.is_interrupted:
            of = "" if self.total is None else f" of {self.total:,}"
            then = f" Go on with: {go_on}" if go_on else ""
            click.echo(
                f"Interrupted: {self.found:,} found among {self.looked:,}{of} entries.{then}",
                err=True,
            )
            raise click.Abort


def is_held(task: ScheduledTask) -> bool:
    """Return whether an entry is due and may not go yet."""
    return task.state in ("paused", "held")


def due_only(delayq: DelayQ, filter: Filter) -> Filter:
    """Return a filter that selects no entries after now."""
    now = screen.now_of(delayq)
    last = filter.without_arg.where().due_to
    return replace(filter, due_to=now) if last is None or moment(last) > now else filter


def note_unknown(number: int) -> None:
    """Print the number of entries that a search could not judge, if there are any."""
    if number:
        click.echo(
            f"The arguments of {number:,} {'entry' if number == 1 else 'entries'} are not known: "
            "their content is not decoded (--unpickle), or the app does not know the signature of "
            "their task.",
            err=True,
        )


def prepare_search(delayq: DelayQ, filter: Filter) -> None:
    """Import the tasks of the app, whose signatures give positional arguments their names.

    Print a note about an argument that no task takes. Older code may have taken it.
    """
    if filter.arg is None:
        return
    if screen.known_tasks(delayq) is None:
        return
    tasks = delayq.app.tasks
    asked: list[Any] = [each for name, each in tasks.items() if not name.startswith("celery.")]
    who = "no task of this app takes"
    if filter.task is not None:
        asked = [tasks[filter.task]] if filter.task in tasks else []
        who = f"task {spelled(filter.task)} does not take"
    names = [argument_names(each) for each in asked]
    if not names or None in names:
        return
    known = set().union(*(each or () for each in names))
    for name in filter.arg:
        if name not in known and not name.isdecimal():
            meant = did_you_mean(name, known) or "."
            click.echo(f"Note: {who} an argument {spelled(name)}{meant}", err=True)
