"""Reads dead letters: iterate, get, count."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

from celery_delayq.errors import InvalidFilter
from celery_delayq.model.dead_letter import DeadFilter, DeadLetter
from celery_delayq.model.lookup import to_bytes
from celery_delayq.store.paging import queues_of
from celery_delayq.store.session import Session
from celery_delayq.store.stores import Stores

#: Called with the number of dead letters to read (None if unknown), and the number read so far.
Progress = Callable[[int | None, int], object]

#: Dead letters after which :data:`Progress` is called.
PROGRESS_DEAD_LETTERS = 100


class ReadCounter:
    """Counts the dead letters that are read, and reports the progress."""

    def __init__(self, progress: Progress | None, total: int | None) -> None:
        self._progress, self._total, self._number = progress, total, 0

    def count_one(self) -> None:
        """Count a dead letter that was read, whether it matches or not."""
        self._number += 1
        if self._progress is not None and self._number % PROGRESS_DEAD_LETTERS == 0:
            self._progress(self._total, self._number)


class DeadLetterReader:
    """The methods of ``delayq.dead_letters`` that only read."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._ask = session.ask

    def __call__(
        self,
        filter: DeadFilter | None = None,
        *,
        queue: str | None = None,
        task: str | None = None,
        task_id: str | None = None,
        reason: str | None = None,
        exception: str | None = None,
        died_from: datetime | str | None = None,
        died_to: datetime | str | None = None,
        root_id: str | None = None,
        group_id: str | None = None,
        progress: Progress | None = None,
    ) -> Iterator[DeadLetter]:
        """Return an iterator over dead letters, in the order of their deaths.

        Each dead letter appears once. A dead letter that is deleted meanwhile may be missing. A
        message that dies meanwhile is left out, also if it was replayed before.

        Parameters
        ----------
        filter : DeadFilter | None
            A filter. Without it, the other arguments are the fields of a
            :class:`~celery_delayq.model.dead_letter.DeadFilter`.
        progress : Callable[[int | None, int], object] | None
            Called after each 100 dead letters that were read, whether they match or not: with the
            number to read (None if unknown), and the number read so far.

        Raises
        ------
        InvalidFilter, InvalidETA
            A field is invalid, or both a filter and fields are given.
        """
        fields = DeadFilter(
            queue, task, reason, exception, died_from, died_to, task_id, root_id, group_id
        )
        return self._iterate(_filter_of(filter, fields), progress=progress)

    def _iterate(
        self, filter: DeadFilter, *, ahead: bool = False, progress: Progress | None = None
    ) -> Iterator[DeadLetter]:
        """Return an iterator over dead letters that match a filter.

        With *ahead*, if only one queue matches, pages are read ahead on a connection of their own.
        """
        low, high = filter.range_ms()
        all_match = filter.is_by_place

        def with_dead_letters(stores: Stores) -> dict[str, tuple[int, int | None]]:
            found = stores.run_each(
                queues_of(stores, filter.queue),
                lambda store, queue: store.dead_letters.extent_steps(queue, low, high),
            )
            return {queue: each for queue, each in found.items() if each[0]}

        queues = self._ask(with_dead_letters)
        ahead = ahead and len(queues) == 1
        counter = ReadCounter(progress, sum(number for number, _ in queues.values()))

        def of_queue(queue: str) -> Iterator[DeadLetter]:
            dead_letters = self._ask(lambda stores: stores.of(queue).dead_letters)
            _, died_to = queues[queue]
            for dead_lettered in dead_letters.all(queue, low, died_to, ahead=ahead, ask=self._ask):
                dead_letter = DeadLetter.of(queue, dead_lettered)
                counter.count_one()
                if all_match or filter.matches(dead_letter):
                    yield dead_letter

        return heapq.merge(
            *map(of_queue, queues), key=lambda dead_letter: dead_letter.dead_lettered.died_ms
        )

    def get(
        self, id: str, *, queue: str | None = None, progress: Progress | None = None
    ) -> DeadLetter | None:
        """Return the dead letter with that id, or else the first one of a task with that id.

        The ids of a dead letter and its task differ if the task became a dead letter several times,
        or if its message had no readable id. The search by the task's id reads all dead letters.

        Parameters
        ----------
        progress : Callable[[int | None, int], object] | None
            Called while all dead letters are read, as for ``delayq.dead_letters(…)``.

        Returns
        -------
        DeadLetter | None
            None if no dead letter has either id.

        Raises
        ------
        InvalidFilter
            *id* is not a string.
        """
        if not isinstance(id, str):
            raise InvalidFilter(f"id={id!r}: expected the id of a dead letter")

        filter = DeadFilter(queue, task_id=id)
        return self._find_by_id(id, queue, progress) or next(
            self._iterate(filter, progress=progress), None
        )

    def _find_by_id(
        self,
        id: str,
        queue: str | None,
        progress: Progress | None,  # noqa: ARG002, for a subclass that reads all dead letters
    ) -> DeadLetter | None:
        def read(stores: Stores) -> DeadLetter | None:
            found = stores.run_each(
                queues_of(stores, queue),
                lambda store, name: store.dead_letters.read_steps(name, [to_bytes(id)]),
            )
            every = (DeadLetter.of(name, each) for name, some in found.items() for each in some)
            return next(every, None)

        return self._ask(read)

    def count(self, /, filter: DeadFilter | None = None, **fields: Any) -> int:
        """Return the number of dead letters that match a filter.

        Without *filter*, the other arguments are its *fields*, as for ``delayq.dead_letters(…)``. A
        filter with other fields than the queue and the times reads all dead letters.

        Raises
        ------
        InvalidFilter, InvalidETA
            A field is invalid, or both a filter and fields are given.
        """
        return self._count(_filter_of(filter, DeadFilter(**fields)))

    def _count(self, filter: DeadFilter) -> int:
        if not filter.is_by_place:
            return sum(1 for _ in self._iterate(filter))
        low, high = filter.range_ms()
        return sum(self._ask(lambda stores: counts_of(stores, filter.queue, low, high)).values())


def counts_of(
    stores: Stores, queue: str | None, low: int | None, high: int | None
) -> dict[str, int]:
    """Return the number of dead letters of each queue, or of one, with a death in a time (ms)."""
    return stores.run_each(
        queues_of(stores, queue),
        lambda store, name: store.dead_letters.count_steps(name, low, high),
    )


def _filter_of(filter: DeadFilter | None, fields: DeadFilter) -> DeadFilter:
    """Return the filter, or else the filter made of fields; raises InvalidFilter for both."""
    if filter is None:
        return fields
    if not fields.is_everything:
        raise InvalidFilter(f"filter={filter!r} and {fields!r}: give one of them")
    return check_filter(filter)


def check_filter(filter: DeadFilter) -> DeadFilter:
    """Return the filter; raises InvalidFilter for another type."""
    if not isinstance(filter, DeadFilter):
        raise InvalidFilter(f"filter={filter!r}: expected a DeadFilter(…)")
    return filter
