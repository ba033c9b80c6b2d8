"""The runs of a history that Spark reads, and how lost runs are found."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from celery_delayq.errors import DelayQError
from celery_delayq.model.history import place_of
from celery_delayq.spark.options import OnLoss
from celery_delayq.spark.read.table_rows import Row, TableRows
from celery_delayq.store.history import HistoryStore
from celery_delayq.store.stores import Stores

logger = logging.getLogger(__name__)

#: The offset before all runs.
START_OFFSET = "0-0"

#: The greatest possible offset.
MAX_OFFSET = "18446744073709551615-18446744073709551615"


class RunsLost(DelayQError):
    """Redis dropped runs of the history before they were read."""


#: The offset of the last run that was read, by the name of its history: see
#: :attr:`~celery_delayq.store.stores.Stores.histories`.
Offsets = Mapping[str, str]


@dataclass(frozen=True)
class Runs:
    """The runs of one history after the offset *after*, up to *upto*.

    *first* is the first offset of the history at planning. If the history begins later during the
    read, Redis has dropped runs.
    """

    after: str
    upto: str
    first: str = "0-0"
    onloss: OnLoss | None = None
    name: str = ""

    def pages(self, stores: Stores, rows: TableRows, limit: int) -> Iterator[list[Row]]:
        """Yield the runs; raises the errors of :func:`check_loss`."""
        after, history = self.after, stores.histories[self.name]
        reached = max(self.after, self.first, key=place_of)
        while True:
            found = history.read(after, self.upto, limit)
            has_first = bool(found) and found[0][0] == self.first
            if self.onloss is not None and not has_first:
                check_loss(history, reached, self.onloss)
            if found:
                yield rows.history(found)
            if len(found) < limit:
                return
            after = reached = found[-1][0]


def last_runs(stores: Stores) -> dict[str, str]:
    """Return the offset of each history's newest run, or :data:`START_OFFSET` without runs."""
    return {
        name: history.newest_offset() or START_OFFSET for name, history in stores.histories.items()
    }


def find_loss(history: HistoryStore, reached: str) -> str:
    """Return why runs after an offset may be lost, ``""`` if no runs are lost.

    The offset is that of the last run that was read. At the start of a history no run can be lost.
    """
    first = history.oldest_offset()
    if place_of(reached) == (0, 0) or (first is not None and place_of(first) <= place_of(reached)):
        return ""
    begins = "is empty" if first is None else f"begins with {first}"
    return (
        f"the history {begins} now, and was read up to {reached}: runs after that may be "
        "lost. Read the history more often, or keep more runs by the setting history"
    )


def check_loss(history: HistoryStore, reached: str, onloss: OnLoss) -> None:
    """Warn, or raise an error, if runs after an offset may be lost; see :func:`find_loss`.

    Raises
    ------
    RunsLost
        *onloss* is ``fail``.
    """
    text = find_loss(history, reached)
    if not text:
        return
    if onloss == "fail":
        raise RunsLost(f"{text}; to continue anyway, set onloss=warn")
    logger.warning("runs may be lost: %s", text)
