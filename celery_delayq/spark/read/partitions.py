"""Splits a table into parts that Spark reads in parallel.

A plan has the bounds of its parts, not entries, so its size does not depend on the number of
entries. Bounds are positions in an order. An entry is in exactly one part, even if entries are
added, removed or moved during the read. If its task is paused or resumed during the read, an entry
may be read twice or not at all.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, product
from typing import NamedTuple, Protocol

from pyspark.sql.datasource import InputPartition

from celery_delayq.model.delivery import split_leased
from celery_delayq.model.envelope import Label
from celery_delayq.model.history import place_of
from celery_delayq.model.script_values import EntryCondition, IndexEntry, Position
from celery_delayq.spark.options import OnLoss
from celery_delayq.spark.read.filters import RowFilter
from celery_delayq.spark.read.history import MAX_OFFSET, START_OFFSET, Offsets, Runs, last_runs
from celery_delayq.spark.read.table_rows import Row, TableRows
from celery_delayq.store.history import HistoryStore
from celery_delayq.store.keys import Layout
from celery_delayq.store.paging import queues_of
from celery_delayq.store.scan import ScanStore, Stretch
from celery_delayq.store.stores import Stores
from celery_delayq.utils.portions import batches

#: The greatest second part of an offset.
_MAX_SEQUENCE = 2**64 - 1


class ReadRange(Protocol):
    """A contiguous range of a table. Executors get a copy."""

    def pages(self, stores: Stores, rows: TableRows, limit: int) -> Iterator[list[Row]]:
        """Yield the rows of the range, at most about *limit* at a time."""


ReadRanges = Iterable[Sequence[ReadRange]]


class _PartitionPlan(NamedTuple):
    """The table to split, and the number of parts."""

    stores: Stores
    wanted: RowFilter
    queues: Mapping[str, Layout]
    parts: int
    least: int


def plan(stores: Stores, wanted: RowFilter, parts: int, least: int) -> list[InputPartition]:
    """Return about *parts* parts of at least *least* rows, each for one Spark task.

    The value of a part is the list of its ranges, in reading order. A part may have several small
    ranges, also of different stores.
    """
    if wanted.table == "periodic":
        return [InputPartition([PeriodicEntries()])]
    if wanted.table == "history":
        upto = last_runs(stores)
        # Runs that end during the read are included: they are in no other table any more.
        rest = InputPartition(
            [Runs(offset, MAX_OFFSET, name=name) for name, offset in upto.items()]
        )
        return [*plan_runs(stores, {}, upto, parts, least), rest]
    # Queues of one store are neighbours, so a store is in few parts.
    names = {**queues_of(stores, None)}
    if wanted.queues is not None:
        some = sorted(wanted.queues)
        names = {name: names.get(name, stores.of(name).layout) for name in some}
    found = _RANGES_BY_TABLE[wanted.table](_PartitionPlan(stores, wanted, names, parts, least))
    return [InputPartition(ranges) for ranges in found if ranges]


def split_sizes(
    sizes: Sequence[int], parts: int, least: int = 1
) -> list[list[tuple[int, int, int]]]:
    """Split lists of these sizes into about *parts* parts of equal size, at least *least*.

    Returns
    -------
    list[list[tuple[int, int, int]]]
        For each part: index of the list, start, and end (exclusive).
    """
    most = max(least, -(-sum(sizes) // parts), 1)
    found: list[list[tuple[int, int, int]]] = []
    room = 0
    for which, size in enumerate(sizes):
        start = 0
        while start < size:
            if room == 0:
                found.append([])
                room = most
            end = min(size, start + room)
            found[-1].append((which, start, end))
            room -= end - start
            start = end
    return found


# -- the history ----------------------------------------------------------------------------------


class _Span(NamedTuple):
    """The runs of one history between two offsets: its times in ms, and about how many runs."""

    runs: Runs
    begin: int
    end: int
    about: int

    def piece(self, start: int, end: int) -> Runs:
        """Return the runs from about index *start* to before *end*, by equal spans of time."""
        after = self.runs.after if start == 0 else self._offset(start)
        upto = self.runs.upto if end == self.about else self._offset(end)
        return replace(self.runs, after=after, upto=upto)

    def _offset(self, index: int) -> str:
        return f"{self.begin + (self.end - self.begin) * index // self.about}-{_MAX_SEQUENCE}"


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
    spans: list[_Span] = []
    for name, history in stores.histories.items():
        offsets = after.get(name, START_OFFSET), upto.get(name, START_OFFSET)
        if span := _span(history, Runs(*offsets, onloss=onloss, name=name)):
            spans.append(span)
    return [
        InputPartition([spans[which].piece(start, end) for which, start, end in pieces])
        for pieces in split_sizes([span.about for span in spans], parts, least)
    ]


def _span(history: HistoryStore, runs: Runs) -> _Span | None:
    first = history.oldest_offset()
    if first is None or place_of(runs.upto) <= place_of(runs.after):
        return None
    begin, end = max(place_of(runs.after), place_of(first))[0], place_of(runs.upto)[0]
    total_ms = max(1, place_of(history.newest_offset() or runs.upto)[0] - place_of(first)[0])
    about = max(1, history.count() * (end - begin) // total_ms)
    return _Span(replace(runs, first=first), begin, end, about)


# -- the schedule ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScheduleRange:
    """A range of the schedule of a queue."""

    stretch: Stretch

    def pages(self, stores: Stores, rows: TableRows, limit: int) -> Iterator[list[Row]]:
        """Yield the entries of the range."""
        store = stores.of(self.stretch.queue)
        for entries in store.scan.entries(self.stretch, limit):
            yield rows.scheduled(self.stretch.queue, entries)


def _scheduled(plan: _PartitionPlan) -> ReadRanges:
    stores, wanted = plan.stores, plan.wanted
    tasks = (None,) if wanted.tasks is None else sorted(wanted.tasks)
    conditions = [EntryCondition(task, wanted.low, wanted.high) for task in tasks]
    began = stores.began_us()
    stretches: list[Stretch] = []
    sizes: list[int] = []
    for store, its in groupby(plan.queues, stores.of):
        names = [*its]
        store.scan.note_reading(names, began)
        some = [
            each
            for name, where in product(names, conditions)
            for each in Stretch.of(name, where, began).pieces()
        ]
        stretches += some
        sizes += store.scan.sizes(some)
    reached: dict[int, Position | None] = {}
    for pieces in split_sizes(sizes, plan.parts, plan.least):
        ranges: list[ReadRange] = []
        for which, _, end in pieces:
            stretch, after = stretches[which], reached.get(which)
            scan = stores.of(stretch.queue).scan
            upto = scan.position(stretch, end - 1) if end < sizes[which] else None
            if upto is not None and after is not None and upto.order <= after.order:
                continue  # entries were added before it, and this part has become empty
            if which not in reached or after is not None:
                ranges.append(ScheduleRange(stretch._replace(after=after, upto=upto)))
                reached[which] = upto  # None at the end
        yield ranges


# -- ready and leased -----------------------------------------------------------------------------


@dataclass(frozen=True)
class ReadyRange:
    """A range of a ready list; positions count from the end from which workers take messages.

    Positions change while workers take messages, so a message may be read twice or not at all.
    """

    queue: str
    step: int | None
    name: str
    start: int
    end: int

    def pages(self, stores: Stores, rows: TableRows, limit: int) -> Iterator[list[Row]]:
        """Yield the messages of the range."""
        scan = stores.of(self.queue).scan
        for found in scan.messages(self.name, self.start, self.end, limit):
            step = self.step
            entries = map(split_leased, found) if step is None else ((step, each) for each in found)
            yield _tracked(scan, rows, self.queue, "ready", [*entries])


def _ready(plan: _PartitionPlan) -> ReadRanges:
    lists: list[tuple[str, int | None, str]] = []
    sizes: list[int] = []
    for store, names in groupby(plan.queues, plan.stores.of):
        some: list[tuple[str, int | None, str]] = []
        for name in names:
            layout = plan.queues[name]
            some.append((name, None, store.keys.queue(name).quarantined))
            some += [(name, step, store.keys.ready(name, step, layout)) for step in layout.steps]
        lists += some
        # A list is read to its end at reading time: messages that became ready are in no other
        # table.
        sizes += [max(1, size) for size in store.scan.lengths([name for *_, name in some])]
    for pieces in split_sizes(sizes, plan.parts, plan.least):
        yield [
            ReadyRange(*lists[which], start, sys.maxsize if end == sizes[which] else end)
            for which, start, end in pieces
        ]


@dataclass(frozen=True)
class LeasedMessages:
    """The leased messages of one process and queue."""

    queue: str
    worker_id: str

    def pages(self, stores: Stores, rows: TableRows, limit: int) -> Iterator[list[Row]]:
        """Yield the messages, except messages that a retry has replaced."""
        scan = stores.of(self.queue).scan
        leased = (value for _, value in scan.leased(self.queue, self.worker_id) if value)
        for values in batches(leased, limit):
            found = [*map(split_leased, values)]
            yield _tracked(scan, rows, self.queue, "running", found, self.worker_id)


def _leased(plan: _PartitionPlan) -> ReadRanges:
    leases = plan.stores.run_each(plan.queues, lambda store, name: store.leases.leases_steps(name))
    leased = [(name, *each) for name, its in leases.items() for each in its]
    for pieces in split_sizes([1] * len(leased), plan.parts):
        yield [LeasedMessages(*leased[which][:2]) for which, _, _ in pieces]


def _tracked(
    scan: ScanStore,
    rows: TableRows,
    queue: str,
    state: str,
    found: Sequence[tuple[int | None, bytes]],
    worker: str | None = None,
) -> list[Row]:
    """Return rows of messages, from their priority steps, bytes and index entries."""
    labels = [Label.of(message) for _, message in found]
    names = [name for label in labels if label is not None for name in (label.id, label.name)]
    values = iter(scan.tracked(queue, "running" if state == "running" else "waiting", names))
    index: list[IndexEntry | None] = []
    for label in labels:
        both = [] if label is None else [IndexEntry.unpack(next(values) or b"") for _ in range(2)]
        its = (each for each in both if each and label and each.message_id == label.message_id)
        index.append(next(its, None))
    return rows.tracked(queue, state, found, index, worker)


# -- dead letters, periodic entries ---------------------------------------------------------------


@dataclass(frozen=True)
class DeadLetterRange:
    """The dead letters of a queue that died within inclusive bounds, in ms since 1970."""

    queue: str
    low: int | None
    high: int | None

    def pages(self, stores: Stores, rows: TableRows, limit: int) -> Iterator[list[Row]]:
        """Yield the dead letters."""
        store = stores.of(self.queue)
        for found in store.dead_letters.pages(self.queue, self.low, self.high, limit):
            yield rows.dead_letters(self.queue, found)


def _dead_letters(plan: _PartitionPlan) -> ReadRanges:
    stores, wanted = plan.stores, plan.wanted
    names = [*plan.queues]
    counts = stores.run_each(
        names, lambda store, name: store.dead_letters.count_steps(name, wanted.low, wanted.high)
    )
    sizes = [*counts.values()]
    reached: dict[int, int | None] = {}
    for pieces in split_sizes(sizes, plan.parts, plan.least):
        ranges: list[ReadRange] = []
        for which, _, end in pieces:
            low, high = reached.get(which, wanted.low), None
            if end < sizes[which]:
                scan = stores.of(names[which]).scan
                high = scan.died_ms(names[which], wanted.low, end - 1)
            if high is None:
                high = wanted.high
            if low is None or high is None or low <= high:
                ranges.append(DeadLetterRange(names[which], low, high))
                reached[which] = None if high is None else high + 1
        yield ranges


@dataclass(frozen=True)
class PeriodicEntries:
    """All periodic entries, which are few."""

    def pages(self, stores: Stores, rows: TableRows, limit: int) -> Iterator[list[Row]]:
        """Yield the periodic entries, each once."""
        seen: set[str] = set()
        found = chain.from_iterable(store.periodic.all() for store in stores)
        for batch in batches(found, limit):
            records = {name: record for name, record in batch if name not in seen}
            seen.update(records)
            yield rows.periodic([*records.items()])


_RANGES_BY_TABLE: Mapping[str, Callable[[_PartitionPlan], ReadRanges]] = {
    "scheduled": _scheduled,
    "ready": _ready,
    "leased": _leased,
    "dead_letters": _dead_letters,
}
