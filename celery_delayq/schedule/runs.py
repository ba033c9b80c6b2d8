"""The history of runs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from celery_delayq.model.history import START, Run, check_range, readable
from celery_delayq.store.session import Session
from celery_delayq.store.stores import Stores, last_run, read_runs

#: Runs that are read at once.
PAGE = 500


class Runs:
    """The history of runs. Called as ``delayq.runs``."""

    def __init__(self, session: Session) -> None:
        self._ask = session.ask

    def history(self, after: str = START, count: int | None = None) -> Iterator[Run]:
        """Return an iterator over the runs that have ended by now, in the order of their ends.

        Runs are kept only if the setting ``history`` is more than 0.

        Parameters
        ----------
        after : str
            Yield runs after the one with this offset, which may have been deleted.
        count : int | None
            The most runs to yield; None for all.

        Raises
        ------
        InvalidCursor
            *after* is no offset.
        InvalidFilter
            *count* is no number.
        """
        check_range(after, count)
        return self._runs(after, self._ask(last_run), count)

    def _runs(self, after: str, upto: str | None, count: int | None) -> Iterator[Run]:
        while upto is not None and count != 0:
            limit = PAGE if count is None else min(PAGE, count)
            entries = self._ask(partial(_read, after, upto, limit))
            if not entries:
                return
            after = entries[-1][0]
            for run in readable(entries):
                yield run
                count = None if count is None else count - 1


def _read(after: str, upto: str, limit: int, stores: Stores) -> list[tuple[str, bytes]]:
    return read_runs(stores, after, upto, limit)
