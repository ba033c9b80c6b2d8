"""How a table is cut into parts that are read side by side, and how each part is read.

Plans hold bounds and never entries, so they are as small for millions as for hundreds. The bounds
are places in an order, so an entry that stays where it is stands in exactly one part, whatever
comes and goes. What is moved in that order while it is read may be met at both places, or at
neither.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import NamedTuple, Protocol

from pyspark.sql.datasource import InputPartition

from celery_delayq.errors import DelayQError
from celery_delayq.spark.options import OnLoss
from celery_delayq.spark.tables import Page, Rows, Tracked, names_of, split_held
from celery_delayq.spark.wanted import Wanted
from celery_delayq.store.keys import Layout
from celery_delayq.store.paging import queues_of
from celery_delayq.store.periodic import PeriodicStore
from celery_delayq.store.scan import Mark, ScanStore, Stretch, Where
from celery_delayq.store.schedule import Store

logger = logging.getLogger(__name__)


class RunsLost(DelayQError):
    """Runs were forgotten before a stream has read them."""


class Span(Protocol):
    """What one part reads without a gap."""

    def pages(self, store: Store, rows: Rows, limit: int) -> Iterator[Page]:
        """Yield what is there, at most about so many rows at a time."""


Spans = Iterable[Sequence[Span]]


class Part(InputPartition):
    """What one task of Spark reads; it goes to an executor."""

    def __init__(self, spans: Sequence[Span]) -> None:
        super().__init__(tuple(spans))

    @property
    def spans(self) -> tuple[Span, ...]:
        """One after the other."""
        spans: tuple[Span, ...] = self.value
        return spans


class _Plan(NamedTuple):
    """What is to be cut."""

    store: Store
    wanted: Wanted
    queues: Mapping[str, Layout]
    parts: int
    least: int


def plan(store: Store, wanted: Wanted, parts: int, least: int) -> list[Part]:
    """Return about so many parts, of at least so many rows where there are enough."""
    if wanted.table == "periodic":
        return [Part([Entries()])]
    if wanted.table == "history":
        upto = store.history.last() or START
        # And what ends meanwhile: it is in no other table any more.
        rest = Part([Runs(upto, END)])
        return [*plan_runs(store, START, upto, parts, least), rest]
    names = {**queues_of(store, None)}
    if wanted.queues is not None:
        names = {name: names.get(name, store.layout) for name in sorted(wanted.queues)}
    found = _HOW[wanted.table](_Plan(store, wanted, names, parts, least))
    return [Part(spans) for spans in found if spans]


def share(sizes: Sequence[int], parts: int, least: int = 1) -> list[list[tuple[int, int, int]]]:
    """Cut things of these sizes into about so many parts of equal size, and at least of *least*.

    Returns
    -------
    list[list[tuple[int, int, int]]]
        Of each part: which thing, from where, and to before where.
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


# -- the schedule ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scheduled:
    """A stretch of the schedule of a queue."""

    stretch: Stretch

    def pages(self, store: Store, rows: Rows, limit: int) -> Iterator[Page]:
        """Yield its entries."""
        for entries in ScanStore(store).entries(self.stretch, limit):
            yield rows.scheduled(self.stretch.queue, entries)


def _scheduled(plan: _Plan) -> Spans:
    store, wanted = plan.store, plan.wanted
    scan = ScanStore(store)
    stretches = [
        each
        for name in plan.queues
        for each in Stretch.all_of(name, wanted.task, wanted.low, wanted.high)
    ]
    sizes = scan.sizes(stretches)
    reached: dict[int, Mark | None] = {}
    for pieces in share(sizes, plan.parts, plan.least):
        spans: list[Span] = []
        for which, _, end in pieces:
            whole, after = stretches[which], reached.get(which)
            upto = scan.mark(whole, end - 1) if end < sizes[which] else None
            if upto is not None and after is not None and upto.key <= after.key:
                continue  # so many came before it meanwhile
            if which not in reached or after is not None:
                spans.append(Scheduled(whole._replace(after=after, upto=upto)))
                reached[which] = upto  # None once there is nothing behind it
        yield spans


# -- what has left it -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Ready:
    """Messages of one ready list, by place from where they are taken out.

    The list moves while workers take from it, so a message may be met in two parts, or in none.
    """

    queue: str
    step: int | None
    name: str
    start: int
    end: int

    def pages(self, store: Store, rows: Rows, limit: int) -> Iterator[Page]:
        """Yield its messages."""
        scan = ScanStore(store)
        for found in scan.messages(self.name, self.start, self.end, limit):
            if self.step is None:
                messages = [split_held(each)[1] for each in found]
                yield rows.quarantined(self.queue, found, _tracked(scan, self.queue, messages))
            else:
                tracked = _tracked(scan, self.queue, found)
                yield rows.ready(self.queue, self.step, found, tracked)


def _ready(plan: _Plan) -> Spans:
    store = plan.store
    lists: list[tuple[str, int | None, str]] = []
    for name, layout in plan.queues.items():
        lists.append((name, None, store.keys.queue(name).quarantined))
        lists += [(name, step, store.keys.ready(name, step, layout)) for step in layout.steps]
    # Each is read to whatever its end is by then: what became ready meanwhile is in no other table.
    sizes = [max(1, size) for size in ScanStore(store).lengths([name for _, _, name in lists])]
    for pieces in share(sizes, plan.parts, plan.least):
        yield [
            Ready(*lists[which], start, sys.maxsize if end == sizes[which] else end)
            for which, start, end in pieces
        ]


@dataclass(frozen=True)
class Leased:
    """What one process holds of a queue."""

    queue: str
    worker_id: str

    def pages(self, store: Store, rows: Rows, limit: int) -> Iterator[Page]:
        """Yield what it holds, but for what a retry has taken the place of."""
        scan = ScanStore(store)
        held = (value for _, value in scan.held(self.queue, self.worker_id) if value)
        while values := [*islice(held, limit)]:
            messages = [split_held(each)[1] for each in values]
            tracked = _tracked(scan, self.queue, messages, "running")
            yield rows.leased(self.queue, self.worker_id, values, tracked)


def _leased(plan: _Plan) -> Spans:
    held = [(name, *each) for name in plan.queues for each in plan.store.leases.leases(name)]
    for pieces in share([1] * len(held), plan.parts):
        yield [Leased(*held[which][:2]) for which, _, _ in pieces]


def _tracked(
    scan: ScanStore, queue: str, messages: Sequence[bytes], where: Where = "waiting"
) -> list[Tracked | None]:
    """Return what is tracked of each message."""
    names = [*map(names_of, messages)]
    asked = [name for each in names if each is not None for name in each[:2]]
    found = iter(scan.tracked(queue, where, asked))
    tracked: list[Tracked | None] = []
    for each in names:
        both = () if each is None else (Tracked.read(next(found), each[2]) for _ in range(2))
        tracked.append(next(filter(None, [*both]), None))
    return tracked


# -- dead letters, periodic entries ---------------------------------------------------------------


@dataclass(frozen=True)
class Died:
    """Dead letters of a queue that died then: from and to in ms since 1970, inclusive."""

    queue: str
    low: int | None
    high: int | None

    def pages(self, store: Store, rows: Rows, limit: int) -> Iterator[Page]:
        """Yield the dead letters."""
        for found in store.dead_letters.pages(self.queue, self.low, self.high, limit):
            yield rows.dead_letters(self.queue, found)


def _dead_letters(plan: _Plan) -> Spans:
    store, wanted = plan.store, plan.wanted
    names, scan = [*plan.queues], ScanStore(store)
    sizes = [store.dead_letters.count(name, wanted.low, wanted.high) for name in names]
    reached: dict[int, int | None] = {}
    for pieces in share(sizes, plan.parts, plan.least):
        spans: list[Span] = []
        for which, _, end in pieces:
            low, high = reached.get(which, wanted.low), None
            if end < sizes[which]:
                high = scan.died_ms(names[which], wanted.low, end - 1)
            if high is None:
                high = wanted.high
            if low is None or high is None or low <= high:
                spans.append(Died(names[which], low, high))
                reached[which] = None if high is None else high + 1
        yield spans


@dataclass(frozen=True)
class Entries:
    """All periodic entries: they are few."""

    def pages(self, store: Store, rows: Rows, limit: int) -> Iterator[Page]:
        """Yield them, each once."""
        seen: set[str] = set()
        found = PeriodicStore(store).all()
        while batch := [*islice(found, limit)]:
            records = {name: record for name, record in batch if name not in seen}
            seen.update(records)
            yield rows.periodic([*records.items()])


# -- the history ----------------------------------------------------------------------------------

#: Before all runs.
START = "0-0"

#: The greatest offset there can be.
END = "18446744073709551615-18446744073709551615"

_LAST_OF_MS = 2**64 - 1


@dataclass(frozen=True)
class Runs:
    """Runs after one offset, up to another one.

    Where the history began when it was planned, *first*, tells what was forgotten since.
    """

    after: str
    upto: str
    first: str = "0-0"
    onloss: OnLoss | None = None

    def pages(self, store: Store, rows: Rows, limit: int) -> Iterator[Page]:
        """Yield the runs; raises what :func:`check_loss` does."""
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
) -> list[Part]:
    """Return parts of the history: of equal time, since its places have no numbers."""
    first = store.history.first()
    if first is None or place_of(upto) <= place_of(after):
        return []
    begin, end = max(place_of(after), place_of(first))[0], place_of(upto)[0]
    whole = max(1, place_of(store.history.last() or upto)[0] - place_of(first)[0])
    about = ScanStore(store).runs() * (end - begin) // whole
    number = max(1, min(parts, about // least, end - begin))
    cuts = [
        f"{begin + (end - begin) * place // number}-{_LAST_OF_MS}" for place in range(1, number)
    ]
    return [Part([Runs(*each, first, onloss)]) for each in pairwise([after, *cuts, upto])]


def place_of(offset: str) -> tuple[int, int]:
    """Return what tells which of two offsets is behind the other."""
    ms, _, number = offset.partition("-")
    return int(ms), int(number or 0)


def loss(store: Store, reached: str) -> str:
    """Return why runs after an offset may be forgotten, ``""`` where they are not.

    The offset is that of a run that was there; from before all runs nothing can be missed.
    """
    first = store.history.first()
    if place_of(reached) == (0, 0) or (first is not None and place_of(first) <= place_of(reached)):
        return ""
    begins = "is empty" if first is None else f"begins with {first}"
    return (
        f"the history {begins} by now, and was read up to {reached}: runs after that may be "
        "forgotten. Have it read more often, or keep more runs by the setting history"
    )


def check_loss(store: Store, reached: str, onloss: OnLoss) -> None:
    """Tell of it if runs after an offset may be forgotten; see :func:`loss`.

    Raises
    ------
    RunsLost
        That is to be an error.
    """
    text = loss(store, reached)
    if not text:
        return
    if onloss == "fail":
        raise RunsLost(f"{text}; to go on all the same, set onloss=warn")
    logger.warning("Read less than there was: %s", text)


_HOW: Mapping[str, Callable[[_Plan], Spans]] = {
    "scheduled": _scheduled,
    "ready": _ready,
    "leased": _leased,
    "dead_letters": _dead_letters,
}
