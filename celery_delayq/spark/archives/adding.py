"""How the queue is archived: the same steps for each table, whatever the archive is kept in.

What is missing in the archive is staged, committed and published, in this order; only then dead
letters
are removed from Redis, and only those that the archive has. Each step finds out by itself what is
to be done, so it does not matter where the job before was killed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Literal
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import functions as F

from celery_delayq.deadletters.client import BATCH
from celery_delayq.errors import ConfigError
from celery_delayq.model.lookup import StatusCode, to_text
from celery_delayq.model.scheduled import moment
from celery_delayq.spark.access import Access, opened
from celery_delayq.spark.archives.commits import ArchiveError, Commit, Place, Target
from celery_delayq.spark.archives.rows import (
    COLUMNS,
    PLACE,
    Batches,
    Exact,
    died_since,
    frame,
    schema_of,
)
from celery_delayq.spark.planning import START, Part, RunsLost, loss, place_of, plan, plan_runs
from celery_delayq.spark.session import MOST_CONNECTIONS, described
from celery_delayq.spark.wanted import Wanted
from celery_delayq.store.paging import queues_of
from celery_delayq.store.scan import ScanStore
from celery_delayq.store.schedule import Store
from celery_delayq.transfer.results import server_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Options:
    """What is archived.

    Attributes
    ----------
    tables : Collection[str]
        Of ``history``, ``dead_letters`` and ``scheduled``, of which there is a snapshot each time.
    source : str | None
        What the queue is called in the archive; host, port and database without it.
    older_than : float
        Only dead letters that died so many seconds ago.
    remove : bool
        Remove dead letters from Redis that the archive has.
    on_loss : str
        ``warn`` or ``fail``, when runs are forgotten before they were archived.
    partitions, batchsize : int
        About how many parts are read side by side, and entries of one round trip.
    access : Mapping[str, str]
        How the queue is found: the options ``url``, ``app``, ``keyprefix`` of the data source.
    """

    tables: Collection[str] = ("history", "dead_letters")
    source: str | None = None
    older_than: float = 0.0
    remove: bool = False
    on_loss: Literal["warn", "fail"] = "warn"
    partitions: int = 8
    batchsize: int = 1000
    access: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Raise :class:`ConfigError` where one is wrong."""
        unknown = sorted({*self.tables} - COLUMNS.keys())
        if unknown or not self.tables:
            raise ConfigError(
                f"tables={', '.join(unknown or self.tables)!r}; valid are: {', '.join(COLUMNS)}"
            )
        if self.on_loss not in ("warn", "fail"):
            raise ConfigError(f"on_loss={self.on_loss!r}; valid are: warn, fail")
        if self.older_than < 0:
            raise ConfigError(f"older_than={self.older_than!r}: expected seconds, from 0")
        for name in ("partitions", "batchsize"):
            if not 1 <= getattr(self, name) <= 10_000:
                raise ConfigError(f"{name}={getattr(self, name)!r}: expected 1 to 10000")
        if self.source == "":
            raise ConfigError("source='': expected a name")
        Access.of(self.access)


@dataclass(frozen=True)
class Summary:
    """What was archived; None where it was not asked for.

    Attributes
    ----------
    source : str
        From which queue.
    history, dead_letters, scheduled : int | None
        Runs, dead letters and entries that were added.
    removed, gone : int | None
        Dead letters that were removed from Redis, and others that were not there any more.
    snapshot : str | None
        The name of the snapshot of the schedule.
    unreadable : int
        Of what was added, only the bytes are in the archive.
    refused : int
        Those of them that cannot be restored: entries of the schedule.
    lost : str
        Why runs may be missing, ``""`` if none are.
    """

    source: str = ""
    history: int | None = None
    dead_letters: int | None = None
    scheduled: int | None = None
    removed: int | None = None
    gone: int | None = None
    snapshot: str | None = None
    unreadable: int = 0
    refused: int = 0
    lost: str = ""

    def sums(self) -> Iterator[tuple[str, int]]:
        """Yield what there is to tell, line by line."""
        for name in ("history", "dead_letters", "removed", "gone", "scheduled", "unreadable"):
            value = getattr(self, name)
            if value is not None:
                yield name.replace("_", " "), value


def archive(spark: SparkSession, target: Target, options: Options) -> Summary:
    """Add to an archive what it has not yet.

    Raises
    ------
    ConfigError
        An option is wrong.
    ArchiveError
        The archive is none, or another job adds to it, too. Nothing was removed from Redis that is
        not in it.
    RunsLost
        Runs may be missing, and that is to be an error.
    """
    options.check()
    return _Job(spark, target, options).run()


class _Job:
    def __init__(self, spark: SparkSession, target: Target, options: Options) -> None:
        self._spark, self._target, self._options = spark, target, options
        self._access = Access.of(options.access)
        with opened(self._access) as delayq:
            self._source = options.source or server_of(delayq.store)
            self._now = delayq.store.now_ms()

    def run(self) -> Summary:
        told = Summary(self._source)
        for table, step in (
            ("history", self._history),
            ("dead_letters", self._dead_letters),
            ("scheduled", self._scheduled),
        ):
            if table in self._options.tables:
                with described(self._spark, f"archive {table}"):
                    told = step(told)
        return told

    # -- the tables

    def _history(self, told: Summary) -> Summary:
        place = self._target.place("history", make=True)
        last = place.last
        reached = dict(last.reached) if last is not None else {}
        self._check_source(reached)
        after, options = reached.get(self._source, START), self._options
        with opened(self._access) as delayq:
            history = delayq.store.history
            upto, first = history.last() or START, history.first() or START
            lost = loss(delayq.store, after)
            parts = plan_runs(delayq.store, after, upto, options.partitions, options.batchsize)
        rows = self._read("history", parts)
        staged = place.stage(rows, self._next(place)) if parts else None
        with opened(self._access) as delayq:  # what was forgotten while it was read
            lost = lost or loss(delayq.store, max(after, first, key=place_of))
        if lost and options.on_loss == "fail":
            if staged is not None:
                place.discard(staged)
            raise RunsLost(f"{lost}. Nothing was added; to go on all the same set on_loss=warn")
        if staged is not None:
            place.commit(replace(staged, reached={**reached, self._source: upto}))
            told = _with(told, staged)
        return replace(told, history=0 if staged is None else staged.rows, lost=lost)

    def _dead_letters(self, told: Summary) -> Summary:
        place = self._target.place("dead_letters", make=True)
        parts, since = self._parts_of_dead_letters()
        number = 0
        if parts:
            # Of one dead letter there are two only where a hand has put one.
            rows = self._read("dead_letters", parts).dropDuplicates(["digest"])
            if place.last is not None:
                # What came back meanwhile and died before is for the next job: it is not compared.
                some = rows.where(died_since(since))
                rows = some.join(place.known(since), "digest", "left_anti")
            # Files of each day that are neither too small nor too large.
            staged = place.stage(rows.hint("rebalance", "day"), self._next(place))
            number = staged.rows
            if number:
                place.commit(staged)
                told = _with(told, staged)
            else:
                place.discard(staged)
        told = replace(told, dead_letters=number)
        if self._options.remove:
            removed, gone = self._remove(place)
            told = replace(told, removed=removed, gone=gone)
        return told

    def _scheduled(self, told: Summary) -> Summary:
        place = self._target.place("scheduled", make=True)
        commit = self._next(place)
        # By its number it has a name of its own.
        name = f"{moment(self._now):%Y%m%dT%H%M%SZ}-{commit.number}"
        with opened(self._access) as delayq:
            parts = self._plan(delayq.store, Wanted("scheduled"))
        # What is moved while it is read may be met at both places.
        rows = self._read("scheduled", parts, {"snapshot": name}).dropDuplicates(["digest"])
        staged = place.stage(rows, replace(commit, snapshot=name))
        place.commit(staged)
        told = _with(told, staged)
        return replace(told, scheduled=staged.rows, snapshot=name, refused=staged.unreadable)

    # -- what is read

    def _read(
        self, table: str, parts: Sequence[Part], constant: Mapping[str, str] = {}
    ) -> DataFrame:
        given = {"source": self._source, **constant}
        return self._frame(table, COLUMNS[table], parts, given)

    def _frame(
        self,
        table: str,
        columns: Mapping[str, str],
        parts: Sequence[Part],
        constant: Mapping[str, str] = {},
    ) -> DataFrame:
        rows = partial(Exact, table, columns, constant)
        limit = self._options.batchsize
        return frame(self._spark, self._access, parts, rows, schema_of(columns), limit)

    def _plan(self, store: Store, wanted: Wanted) -> list[Part]:
        return plan(store, wanted, self._options.partitions, self._options.batchsize)

    def _parts_of_dead_letters(self) -> tuple[list[Part], date]:
        """Return the parts of dead letters that are meant, and the day on which the first one
        died."""
        last = self._now - int(self._options.older_than * 1000)
        with opened(self._access) as delayq:
            store = delayq.store
            parts = self._plan(store, Wanted("dead_letters", high=last))
            scan = ScanStore(store)
            died = [scan.died_ms(queue, None, 0) for queue in queues_of(store, None)]
        first = min((each for each in died if each is not None), default=0)
        return parts, moment(first).date()

    def _next(self, place: Place) -> Commit:
        last = place.last
        return Commit(
            table=place.table,
            number=1 if last is None else last.number + 1,
            made=moment(self._now).isoformat(),
            source=self._source,
            reached={} if last is None else last.reached,
        )

    def _check_source(self, reached: Mapping[str, str]) -> None:
        """Raise :class:`ArchiveError` where this may be a known queue under another name.

        All its history would be archived once more.
        """
        if reached and self._source not in reached and self._options.source is None:
            raise ArchiveError(
                f"the archive has the history of {', '.join(sorted(reached))}, and this queue is "
                f"{self._source}: if it is the same under another name, give the name that the "
                f"archive has by the option source, else give source={self._source!r}"
            )

    # -- what is removed

    def _remove(self, place: Place) -> tuple[int, int]:
        """Remove dead letters from Redis that are in the archive; return how many, and how many
        others were not there any more.
        """
        parts, since = self._parts_of_dead_letters()
        if not parts or place.last is None:
            return 0, 0
        dead_letters = self._frame("dead_letters", PLACE, parts)
        archived = dead_letters.join(place.known(since), "digest", "left_semi").coalesce(
            MOST_CONNECTIONS
        )
        done = archived.mapInArrow(_removing(self._access), "removed BIGINT, gone BIGINT")
        [(removed, gone)] = done.agg(F.sum("removed"), F.sum("gone")).collect()
        return int(removed or 0), int(gone or 0)


def _with(told: Summary, staged: Commit) -> Summary:
    return replace(told, unreadable=told.unreadable + staged.unreadable)


def _discarded(
    queue: str, dead_letters: Sequence[tuple[str, int]], token: str, store: Store
) -> list[StatusCode]:
    return store.dead_letters.discard(queue, dead_letters, token)


def _removing(access: Access) -> Callable[[Batches], Batches]:
    """Return what removes dead letters on executors, each only if it still is the one that was
    read."""

    def remove(batches: Batches) -> Batches:
        states: Counter[StatusCode] = Counter()
        with opened(access) as delayq:
            for batch in batches:
                by_queue: dict[str, list[tuple[str, int]]] = defaultdict(list)
                rows = (batch.column(name).to_pylist() for name in ("queue", "name", "died_ms"))
                for queue, name, died_ms in zip(*rows, strict=True):
                    by_queue[queue].append((to_text(name), died_ms))
                for queue, dead_letters in by_queue.items():
                    for start in range(0, len(dead_letters), BATCH):
                        part = dead_letters[start : start + BATCH]
                        states.update(
                            delayq.session.ask(partial(_discarded, queue, part, uuid4().hex))
                        )
        removed = states.pop("d", 0)
        yield pa.RecordBatch.from_pydict({"removed": [removed], "gone": [states.total()]})

    return remove
