"""Reads the history of runs in parts, and detects lost runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from pyspark.sql.datasource import InputPartition

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

_MAX_SEQUENCE = 2**64 - 1


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


class _Span(NamedTuple):
    """The runs of one history between two offsets, and their approximate number."""

    runs: Runs
    begin: int
    end: int
    about: int

    def cut(self, number: int) -> list[Runs]:
        """Return about *number* parts that cover equal spans of time."""
        begin, time = self.begin, self.end - self.begin
        number = max(1, min(number, time))
        cuts = [f"{begin + time * n // number}-{_MAX_SEQUENCE}" for n in range(1, number)]
        bounds = pairwise([self.runs.after, *cuts, self.runs.upto])
        return [replace(self.runs, after=after, upto=upto) for after, upto in bounds]


def last_runs(stores: Stores) -> dict[str, str]:
    """Return the offset of each history's newest run, or :data:`START_OFFSET` without runs."""
    return {name: history.last() or START_OFFSET for name, history in stores.histories.items()}


def plan_runs(
    stores: Stores,
    after: Offsets,
    upto: Offsets,
    parts: int,
    least: int,
    onloss: OnLoss | None = None,
) -> list[InputPartition]:
    """Return about *parts* parts of at least *least* runs, one history after another.

    Parameters
    ----------
    after, upto : Mapping[str, str]
        Offsets by history. A history that *after* lacks is read from its start; a history that
        *upto* lacks is not read.
    """
    spans = [
        span
        for name, history in stores.histories.items()
        if (
            span := _span(
                history,
                Runs(after.get(name, START_OFFSET), upto.get(name, START_OFFSET), name=name),
            )
        )
    ]
    total = sum(each.about for each in spans)
    most = max(least, total // parts, 1)
    found: list[list[Runs]] = []
    room = 0
    for span in spans:
        number = max(1, min(parts * span.about // max(total, 1), span.about // least))
        pieces = span.cut(number)
        for each in pieces:
            if room <= 0:
                found.append([])
                room = most
            found[-1].append(replace(each, onloss=onloss))
            room -= -(-span.about // len(pieces))
    return [InputPartition(ranges) for ranges in found]


def _span(history: HistoryStore, runs: Runs) -> _Span | None:
    first = history.first()
    if first is None or place_of(runs.upto) <= place_of(runs.after):
        return None
    begin, end = max(place_of(runs.after), place_of(first))[0], place_of(runs.upto)[0]
    total_ms = max(1, place_of(history.last() or runs.upto)[0] - place_of(first)[0])
    about = history.count() * (end - begin) // total_ms
    return _Span(replace(runs, first=first), begin, end, about)


def find_loss(history: HistoryStore, reached: str) -> str:
    """Return why runs after an offset may be lost, ``""`` if no runs are lost.

    The offset is that of the last run that was read. At the start of a history no run can be lost.
    """
    first = history.first()
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
