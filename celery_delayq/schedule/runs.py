"""The history of runs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from celery_delayq.model.history import START_OFFSET, Run, check_range, read_runs
from celery_delayq.store.session import Session
from celery_delayq.store.stores import Stores
from celery_delayq.utils.delegation import methods_name_arguments

#: Runs that are read at once.
PAGE_RUNS = 500


@methods_name_arguments
class Runs:
    """The history of runs. Called as ``delayq.runs``."""

    def __init__(self, session: Session) -> None:
        self._ask = session.ask

    def history(self, after: str = START_OFFSET, count: int | None = None) -> Iterator[Run]:
        """Return an iterator over all runs that have ended, in the order of their ends.

        Runs are kept only if the setting ``history`` is more than 0.

        Parameters
        ----------
        after : str
            Yield the runs after this offset. The run with this offset may have been deleted.
        count : int | None
            Most runs to yield; None for all.

        Raises
        ------
        InvalidCursor
            *after* is no offset.
        InvalidFilter
            *count* is no number.
        """
        check_range(after, count)
        return self._runs(after, self._ask(Stores.last_run), count)

    def newest(self, count: int, *, id: str | None = None) -> list[Run]:
        """Return the newest runs, or the newest runs of one task, in the order of their ends.

        Parameters
        ----------
        count : int
            Most runs to return.
        id : str | None
            The id of a task.

        Raises
        ------
        InvalidFilter
            *count* is no number.
        """
        check_range(START_OFFSET, count)
        if not count:
            return []
        found = self._ask(lambda stores: stores.newest_runs(count, id))
        return [*read_runs(reversed(found))]

    def _runs(self, after: str, upto: str | None, count: int | None) -> Iterator[Run]:
        while upto is not None and count != 0:
            limit = PAGE_RUNS if count is None else min(PAGE_RUNS, count)
            read = partial(Stores.read_runs, after=after, upto=upto, limit=limit)
            entries = self._ask(read)
            if not entries:
                return
            after = entries[-1][0]
            for run in read_runs(entries):
                yield run
                count = None if count is None else count - 1
