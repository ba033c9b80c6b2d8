"""How the history of runs is read in parts, and how lost runs are noticed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from celery_delayq.errors import DelayQError
from celery_delayq.spark.options import OnLoss
from celery_delayq.spark.read.table_rows import Row, TableRows
from celery_delayq.store.scan import ScanStore
from celery_delayq.store.schedule import Store

logger = logging.getLogger(__name__)

#: Before all runs.
START = "0-0"

#: The greatest offset there can be.
END = "18446744073709551615-18446744073709551615"

_LAST_OF_MS = 2**64 - 1


class RunsLost(DelayQError):
    """Redis dropped runs of the history before they were read."""


@dataclass(frozen=True)
class Runs:
    """Runs after one offset, up to another one.

    *first* is the first offset at planning; a later first offset shows that runs were dropped.
    """

    after: str
    upto: str
    first: str = "0-0"
    onloss: OnLoss | None = None

    def pages(self, store: Store, rows: TableRows, limit: int) -> Iterator[list[Row]]:
        """Yield the runs; raises the errors of :func:`check_loss`."""
        after = self.after
        reached = max(self.after, self.first, key=place_of)
        while True:
            found = store.history.read(after, self.upto, limit)
            is_whole = bool(found) and found[0][0] == self.first
            if self.onloss is not None and not is_whole:
                check_loss(store, reached, self.onloss)
            if found:
                yield rows.history(found)
            if len(found) < limit:
                return
            after = reached = found[-1][0]


def plan_runs(
    store: Store, after: str, upto: str, parts: int, least: int, onloss: OnLoss | None = None
) -> list[InputPartition]:
    """Return parts of the history that cover equal spans of time."""
    first = store.history.first()
    if first is None or place_of(upto) <= place_of(after):
        return []
    begin, end = max(place_of(after), place_of(first))[0], place_of(upto)[0]
    whole = max(1, place_of(store.history.last() or upto)[0] - place_of(first)[0])
    about = ScanStore(store).runs() * (end - begin) // whole
    number = max(1, min(parts, about // least, end - begin))
    cuts = [f"{begin + (end - begin) * n // number}-{_LAST_OF_MS}" for n in range(1, number)]
    return [InputPartition([Runs(*each, first, onloss)]) for each in pairwise([after, *cuts, upto])]


def place_of(offset: str) -> tuple[int, int]:
    """Return an offset as numbers that can be compared."""
    ms, _, number = offset.partition("-")
    return int(ms), int(number or 0)


def loss(store: Store, reached: str) -> str:
    """Return why runs after an offset may be lost, ``""`` if none are.

    The offset is that of a run that was read. From the start of a history nothing can be lost.
    """
    first = store.history.first()
    if place_of(reached) == (0, 0) or (first is not None and place_of(first) <= place_of(reached)):
        return ""
    begins = "is empty" if first is None else f"begins with {first}"
    return (
        f"the history {begins} now, and was read up to {reached}: runs after that may be "
        "lost. Read it more often, or keep more runs by the setting history"
    )


def check_loss(store: Store, reached: str, onloss: OnLoss) -> None:
    """Warn, or raise an error, if runs after an offset may be lost; see :func:`loss`.

    Raises
    ------
    RunsLost
        *onloss* is ``fail``.
    """
    text = loss(store, reached)
    if not text:
        return
    if onloss == "fail":
        raise RunsLost(f"{text}; to continue anyway, set onloss=warn")
    logger.warning("runs may be lost: %s", text)
