"""Reads dead letters by a filter in the order of their deaths, one page after the other."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from celery_delayq.model.dead_letter import DeadFilter, DeadLetter, DeadLetterCursor
from celery_delayq.model.scheduled import Page
from celery_delayq.schedule.pages import search_of
from celery_delayq.store.control import MAX_PAGE_BYTES
from celery_delayq.store.dead_letters import DeadLetterExtent
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

#: Dead letters of the first page of a queue, if several queues are read. Each further page has
#: twice as many.
FIRST_PAGE = 10


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


class DeadLetterPlaces(NamedTuple):
    """Dead letters that are read as the iterator goes on.

    Attributes
    ----------
    found : Iterator[tuple[float, DeadLetter]]
        The dead letters, with their scores in the index by time of death.
    total : int | None
        Number of dead letters to read; None if unknown.
    until : int | None
        The latest possible time of their deaths (ms); None if unknown.
    """

    found: Iterator[tuple[float, DeadLetter]]
    total: int | None = None
    until: int | None = None


def found_pages(
    places: DeadLetterPlaces,
    filter: DeadFilter,
    search: DeadLetterSearch,
    *,
    limit: int | None,
    most_looked: int,
) -> Iterator[Page[DeadLetter]]:
    """Yield pages of the dead letters that a search selects; the last one has no cursor.

    A page ends after *most_looked* dead letters that were read, or about 4 MB of what was found.

    Parameters
    ----------
    places : DeadLetterPlaces
        The dead letters to search.
    limit : int | None
        Most dead letters of all pages together; None for all.
    """
    found: list[DeadLetter] = []
    looked = size = unknown_before = 0
    rest, cursor = limit, DeadLetterCursor()
    for score, each in places.found:
        is_complete = rest is not None and len(found) >= rest
        if is_complete or looked >= most_looked or size >= MAX_PAGE_BYTES:
            yield Page(found, cursor.pack(filter), looked, search.unknown - unknown_before)
            if is_complete:
                return
            rest = None if rest is None else rest - len(found)
            found, looked, size, unknown_before = [], 0, 0, search.unknown
        looked += 1
        offset = getattr(each, "offset", -1)
        cursor = DeadLetterCursor(score, each.queue, each.id, offset, places.until)
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
) -> DeadLetterPlaces:
    """Return the dead letters of a filter's queue and time behind a cursor.

    A queue is read when its first dead letter is next: a page of many queues reads few of them.
    """
    low, high = filter.range_ms()
    if after.until is not None:
        high = after.until

    def begin_of(queue: str) -> tuple[float | None, bytes] | None:
        return after.begin_of(queue) if after.queue else (low, b"")

    def with_dead_letters(stores: Stores) -> dict[str, DeadLetterExtent]:
        begins = {queue: begin_of(queue) for queue in queues_of(stores, filter.queue)}
        scores = {queue: begin[0] for queue, begin in begins.items() if begin is not None}
        found = stores.run_each(
            scores,
            lambda store, queue: store.dead_letters.extent_steps(queue, scores[queue], high),
        )
        return {queue: each for queue, each in found.items() if each.number}

    extents = ask(with_dead_letters)
    is_one = len(extents) == 1

    def of_queue(queue: str) -> Iterator[tuple[float, DeadLetter]]:
        begin = begin_of(queue)
        if begin is None:
            return
        dead_letters = ask(lambda stores: stores.of(queue).dead_letters)
        died_from, id = begin
        pages = dead_letters.places(
            queue,
            died_from,
            extents[queue].last_ms,
            after=id,
            first_page=None if is_one else FIRST_PAGE,
            ahead=ahead and is_one,
            ask=ask,
        )
        for page in pages:
            for score, record in page:
                yield score, DeadLetter.of(queue, record)

    found = merged({queue: each.first for queue, each in extents.items()}, of_queue)
    total = sum(each.number for each in extents.values())
    latest = [math.inf if each.last_ms is None else each.last_ms for each in extents.values()]
    until = max(latest, default=math.inf)
    return DeadLetterPlaces(
        counted(found, progress, total), total, None if math.isinf(until) else int(until)
    )


def merged(
    firsts: Mapping[str, float], of_queue: Callable[[str], Iterator[tuple[float, T]]]
) -> Iterator[tuple[float, T]]:
    """Yield the items of several queues by score, and by queue if scores are equal.

    Parameters
    ----------
    firsts : Mapping[str, float]
        For each queue a score that its first item has at least.
    of_queue : Callable[[str], Iterator[tuple[float, T]]]
        Returns the items of a queue with their scores. Called when its first item may be next.
    """
    # A queue occurs once, so items are never compared.
    heap: list[tuple[float, str, tuple[T, ...], Iterator[tuple[float, T]] | None]]
    heap = [(score, queue, (), None) for queue, score in firsts.items()]
    heapq.heapify(heap)
    while heap:
        score, queue, items, rest = heap[0]
        for item in items:
            yield score, item
        rest = rest or of_queue(queue)
        following = next(rest, None)
        if following is None:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (following[0], queue, (following[1],), rest))


def counted(found: Iterable[T], progress: Progress | None, total: int | None) -> Iterator[T]:
    """Yield dead letters that are read, and report the progress."""
    for number, each in enumerate(found, 1):
        if progress is not None and number % PROGRESS_DEAD_LETTERS == 0:
            progress(total, number)
        yield each
