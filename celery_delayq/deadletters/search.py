"""The search for dead letters by a filter, with the tasks of an app, and its pages."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from celery_delayq.model.dead_letter import DeadFilter, DeadLetter, DeadLetterCursor
from celery_delayq.model.scheduled import Page
from celery_delayq.schedule.search import search_of
from celery_delayq.store.control import MAX_PAGE_BYTES
from celery_delayq.store.paging import Ask, queues_of
from celery_delayq.store.session import Session
from celery_delayq.store.stores import Stores

T = TypeVar("T")

#: Called with the number of dead letters to read (None if unknown), and the number read so far.
Progress = Callable[[int | None, int], object]

#: Most dead letters that are read for one page of ``delayq.list_dead``.
MAX_SEARCHED = 10_000

#: Dead letters after which :data:`Progress` is called.
PROGRESS_DEAD_LETTERS = 100


class DeadLetterSearch:
    """Selects dead letters whose queue and time of death match a filter already.

    Attributes
    ----------
    unknown : int
        Number of dead letters whose arguments are not known. They are not selected.
    """

    def __init__(self, session: Session, filter: DeadFilter) -> None:
        self._filter = filter
        self._renames = session.renames
        self._arguments = search_of(session, filter)
        self.unknown = 0

    def selects(self, dead_letter: DeadLetter) -> bool:
        """Return whether a dead letter matches the filter."""
        if not self._filter.matches_names(dead_letter, self._renames):
            return False
        if self._arguments is None:
            return True
        verdict = self._arguments.matches(dead_letter.message)
        self.unknown += verdict is None
        return verdict is True


def found_pages(
    places: Iterator[tuple[float, DeadLetter]],
    filter: DeadFilter,
    search: DeadLetterSearch,
    until: int | None,
    *,
    limit: int | None,
    most_looked: int,
) -> Iterator[Page[DeadLetter]]:
    """Yield pages of the dead letters that a search selects; the last one has no cursor.

    A page ends after *most_looked* dead letters that were read, or about 4 MB of what was found.

    Parameters
    ----------
    places : Iterator[tuple[float, DeadLetter]]
        The dead letters to search, with their scores in the index.
    until : int | None
        The latest time of death (ms) that all pages have.
    limit : int | None
        Most dead letters of all pages together; None for all.
    """
    found: list[DeadLetter] = []
    looked = size = unknown_before = 0
    rest, cursor = limit, DeadLetterCursor()
    for score, each in places:
        is_complete = rest is not None and len(found) >= rest
        if is_complete or looked >= most_looked or size >= MAX_PAGE_BYTES:
            yield Page(found, cursor.pack(filter), looked, search.unknown - unknown_before)
            if is_complete:
                return
            rest = None if rest is None else rest - len(found)
            found, looked, size, unknown_before = [], 0, 0, search.unknown
        looked += 1
        offset = getattr(each, "offset", -1)
        cursor = DeadLetterCursor(score, each.queue, each.id, offset, until)
        if search.selects(each):
            found.append(each)
            size += len(each.dead_lettered.data)
    yield Page(found, None, looked, search.unknown - unknown_before)


def places_in_redis(
    ask: Ask[Any],
    filter: DeadFilter,
    after: DeadLetterCursor,
    *,
    ahead: bool = False,
    progress: Progress | None = None,
) -> tuple[Iterator[tuple[float, DeadLetter]], int | None]:
    """Return an iterator over the dead letters of a filter's queue and time behind a cursor,
    with their scores, and the latest possible time of their deaths (ms).
    """
    low, high = filter.range_ms()
    if after.until is not None:
        high = after.until

    def with_dead_letters(stores: Stores) -> dict[str, tuple[int, int | None]]:
        found = stores.run_each(
            queues_of(stores, filter.queue),
            lambda store, queue: store.dead_letters.extent_steps(queue, low, high),
        )
        return {queue: each for queue, each in found.items() if each[0]}

    queues = ask(with_dead_letters)
    ahead = ahead and len(queues) == 1

    def of_queue(queue: str) -> Iterator[tuple[float, DeadLetter]]:
        dead_letters = ask(lambda stores: stores.of(queue).dead_letters)
        begin: tuple[float | None, bytes] | None = low, b""
        if after.queue:
            begin = after.begin_of(queue)
        if begin is None:
            return iter(())
        score, id = begin
        _, died_to = queues[queue]
        found = dead_letters.places(queue, score, died_to, after=id, ahead=ahead, ask=ask)
        return ((score, DeadLetter.of(queue, record)) for page in found for score, record in page)

    found = heapq.merge(*map(of_queue, queues), key=lambda each: (each[0], each[1].queue))
    total = sum(number for number, _ in queues.values())
    latest = [math.inf if died_to is None else died_to for _, died_to in queues.values()]
    until = max(latest, default=math.inf)
    return counted(found, progress, total), None if math.isinf(until) else int(until)


def counted(found: Iterable[T], progress: Progress | None, total: int | None) -> Iterator[T]:
    """Yield dead letters that are read, and report the progress."""
    for number, each in enumerate(found, 1):
        if progress is not None and number % PROGRESS_DEAD_LETTERS == 0:
            progress(total, number)
        yield each
