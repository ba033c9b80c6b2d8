"""The search for scheduled tasks and dead letters: page by page, with a bar, resumable."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import chain
from typing import Any

import click
from rich.text import Text

from celery_delayq.app import DelayQ
from celery_delayq.cli import screen
from celery_delayq.cli.items import ItemKind, SelectedKind
from celery_delayq.model.arguments.search import argument_names
from celery_delayq.model.dead_letter import DeadFilter
from celery_delayq.model.scheduled import Cursor, Filter, Page, ScheduledTask, moment
from celery_delayq.schedule.pages import found_page
from celery_delayq.store.paging import SEARCH_ENTRIES
from celery_delayq.utils.text import did_you_mean, spelled


class Search:
    """Reads the pages of a search. Ctrl-C ends it, and *cursor* is where it goes on.

    Parameters
    ----------
    kind : SelectedKind
        The kind of what is searched.
    read : Callable[[], Iterator[Page]]
        Returns the pages.
    cursor : str | None
        Where the first page begins; None for the first item.
    total : int | None
        Number of items to read; None if unknown.
    """

    def __init__(
        self,
        kind: SelectedKind,
        read: Callable[[], Iterator[Page[Any]]],
        cursor: str | None,
        total: int | None,
    ) -> None:
        self._kind = kind
        self._read = read
        self.cursor = cursor
        self.total = total
        self.found = self.looked = self.unknown = 0
        self.is_interrupted = False

    def pages(self, bar: Callable[..., None] | None = None) -> Iterator[Page[Any]]:
        """Yield the pages that have items.

        Without a *bar*, one appears while the search for the next page takes long.
        """
        if bar is not None:
            return self._pages(bar)
        return screen.with_bar(self._pages, description="search")

    def _pages(self, bar: Callable[..., None]) -> Iterator[Page[Any]]:
        with self._until_interrupt():
            for page in self._read():
                self.cursor = page.cursor
                self.found += len(page)
                self.looked += page.looked
                self.unknown += page.unknown
                bar(self.total, self.looked)
                if page.entries:
                    yield page
                    sys.stdout.flush()
                if self.is_interrupted:
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

    def show(self, delayq: DelayQ, filter: Any, next_page: Callable[[str], str]) -> None:
        """Print items as they are found, and the command that goes on with the search.

        Parameters
        ----------
        next_page : Callable[[str], str]
            Returns the command for a cursor.
        """
        if screen.is_json():
            found = chain.from_iterable(self.pages())
            self._kind.print_json(found, lambda: {"cursor": self.cursor})
        else:
            self._kind.print_batches(delayq, self.pages())
        go_on = "" if self.cursor is None else next_page(self.cursor)
        self.finish(go_on)
        if screen.is_json():
            return
        if go_on:
            text = Text(f"{self._kind.number(self.found)}, and there may be more: ")
            screen.console().print(text.append(go_on, "dim"), soft_wrap=True)
        else:
            self._kind.print_number(delayq, filter, self.found)

    def finish(self, go_on: str = "") -> None:
        """Print what was not found for sure; end the command if Ctrl-C has ended the search.

        Parameters
        ----------
        go_on : str
            The command that goes on with the search.
        """
        note_unknown(self._kind, self.unknown)
        if self.is_interrupted:
            of = "" if self.total is None else f" of {self.total:,}"
            then = f" Go on with: {go_on}" if go_on else ""
            click.echo(
                f"Interrupted: {self.found:,} found among {self.looked:,}{of} {self._kind.many}."
                f"{then}",
                err=True,
            )
            raise click.Abort


def search_entries(
    delayq: DelayQ,
    kind: SelectedKind,
    filter: Filter,
    cursor: str | None = None,
    most: int | None = None,
    *,
    held: bool = False,
) -> Search:
    """Return the search for scheduled entries.

    Parameters
    ----------
    cursor : str | None
        Where to begin; None for the first entry.
    most : int | None
        Most entries to find; None for all.
    held : bool
        Find only entries that are held. They are due, so later entries are not read.
    """
    held_until = screen.now_of(delayq) if held else None
    prepare_search(delayq, filter)
    place = (due_only(delayq, filter) if held else filter).without_arg
    total = delayq.count(place) if place.priority is None and cursor is None else None
    read = partial(_entry_pages, delayq, filter, cursor, most, held_until)
    return Search(kind, read, cursor, total)


def _entry_pages(
    delayq: DelayQ,
    filter: Filter,
    cursor: str | None,
    most: int | None,
    held_until: datetime | None,
) -> Iterator[Page[ScheduledTask]]:
    found = 0
    while most is None or found < most:
        limit = SEARCH_ENTRIES if most is None else most - found
        after = None if cursor is None else Cursor.unpack(cursor, filter)
        page = found_page(delayq.session, filter, limit, after)
        if held_until is not None:
            page = _held_page(page, filter, held_until)
        yield page
        found += len(page)
        if page.cursor is None:
            return
        cursor = page.cursor


def _held_page(page: Page[ScheduledTask], filter: Filter, now: datetime) -> Page[ScheduledTask]:
    cursor = page.cursor
    if cursor is not None and moment(Cursor.unpack(cursor, filter).key) > now:
        cursor = None
    return replace(page, entries=[each for each in page if is_held(each)], cursor=cursor)


def search_dead_letters(
    delayq: DelayQ,
    kind: SelectedKind,
    filter: DeadFilter,
    cursor: str | None = None,
    most: int | None = None,
) -> Search:
    """Return the search for dead letters; parameters as for :func:`search_entries`."""
    prepare_search(delayq, filter)
    total = None
    if cursor is None and not delayq.session.on_rabbitmq:  # which would read them all to count
        total = delayq.count_dead(filter.by_place)
    dead_letters = delayq.dead_letters
    read = partial(
        dead_letters.pages, filter, limit=most, cursor=cursor, most_looked=SEARCH_ENTRIES
    )
    return Search(kind, read, cursor, total)


def is_held(task: ScheduledTask) -> bool:
    """Return whether an entry is due and may not go yet."""
    return task.state in ("paused", "held")


def due_only(delayq: DelayQ, filter: Filter) -> Filter:
    """Return a filter that selects no entries after now."""
    now = screen.now_of(delayq)
    last = filter.without_arg.where().due_to
    return replace(filter, due_to=now) if last is None or moment(last) > now else filter


def note_unknown(kind: ItemKind, number: int) -> None:
    """Print the number of items that a search could not judge, if there are any."""
    if number:
        click.echo(
            f"The arguments of {kind.number(number)} are not known: their content is not decoded "
            "(--unpickle), the app does not know the signature of their task, or the task takes "
            "them as *args, which have no names (--arg 0=… is the first one).",
            err=True,
        )


def prepare_search(delayq: DelayQ, filter: Filter | DeadFilter) -> None:
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
        task = tasks.get(delayq.session.renames.of(filter.task))
        asked = [] if task is None else [task]
        who = f"task {spelled(filter.task)} does not take"
    names = [argument_names(each) for each in asked]
    if not names or None in names:
        return
    known = set().union(*(each or () for each in names))
    for name in filter.arg:
        if name not in known and not name.isdecimal():
            meant = did_you_mean(name, known) or "."
            click.echo(f"Note: {who} an argument {spelled(name)}{meant}", err=True)
