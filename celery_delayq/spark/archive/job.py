"""The job that archives, and its command: the same steps for each table.

New rows are staged, committed and published, in this order. After that, archived dead letters are
removed from Redis. Each step determines the remaining work itself, so a job may be killed anywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date

import click
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition

from celery_delayq.app import DelayQ
from celery_delayq.deadletters.client import counts_of
from celery_delayq.errors import ConfigError
from celery_delayq.model.history import place_of
from celery_delayq.model.scheduled import moment
from celery_delayq.model.script_values import StatusCode
from celery_delayq.spark import jobs
from celery_delayq.spark.access import Access, open_client
from celery_delayq.spark.archive.commits import ArchiveError, Commit
from celery_delayq.spark.archive.folder import ArchivedTable, check_archive_folder
from celery_delayq.spark.archive.rows import ARCHIVE_COLUMNS, PLACE_COLUMNS, ArchiveRows, died_since
from celery_delayq.spark.executors import Batches, Outcomes, change_rows
from celery_delayq.spark.options import COUNT_TYPE, JobOptions, Names, OnLoss, one_of, option
from celery_delayq.spark.read.filters import RowFilter
from celery_delayq.spark.read.history import (
    START_OFFSET,
    Offsets,
    RunsLost,
    find_loss,
    last_runs,
)
from celery_delayq.spark.read.partitions import plan, plan_runs
from celery_delayq.spark.read.readers import read_part
from celery_delayq.spark.read.tables import schema_of
from celery_delayq.spark.session import job_description
from celery_delayq.store.stores import Stores
from celery_delayq.transfer.dead_letter_archive import delete_unchanged

#: The text between the name of a broker and the hash tag of one of its histories.
_TAG_SEPARATOR = ", hash tag "


@dataclass(frozen=True)
class ArchiveOptions(JobOptions):
    """What to archive.

    Attributes
    ----------
    tables : Collection[str]
        Any of ``history``, ``dead_letters`` and ``scheduled``. For ``scheduled`` each job adds a
        snapshot.
    source : str | None
        Name of the broker in the archive; None: its host, port and database.
    older_than : float
        Only dead letters that died at least this many seconds ago.
    remove : bool
        Remove archived dead letters from Redis.
    on_loss : str
        ``warn`` or ``fail`` if Redis dropped runs before they were archived.
    partitions, batchsize : int
        Approximate number of parts to read in parallel, and entries per round trip.
    """

    tables: Collection[str] = option(
        ("history", "dead_letters"),
        f"Tables to archive, with commas: {', '.join(ARCHIVE_COLUMNS)}.",
        "NAMES",
        type=Names(),
    )
    source: str | None = option(
        None, "Name of the broker in the archive; default: host, port and database.", "NAME"
    )
    older_than: float = option(
        0.0,
        "Only dead letters that died at least this many seconds ago.",
        "SECONDS",
        type=click.FloatRange(0),
    )
    remove: bool = option(False, "Remove archived dead letters from Redis.", type=click.BOOL)
    on_loss: OnLoss = option(
        "warn", "Action if Redis dropped runs before they were archived.", type=one_of(OnLoss)
    )
    partitions: int = option(8, "Approximate number of parts to read in parallel.", type=COUNT_TYPE)
    batchsize: int = option(1000, "Entries per round trip.", type=COUNT_TYPE)

    def check(self) -> None:
        """Raise :class:`ConfigError` if an option is wrong."""
        super().check()
        unknown = sorted({*self.tables} - ARCHIVE_COLUMNS.keys())
        if unknown or not self.tables:
            raise ConfigError(
                f"tables={', '.join(unknown or self.tables)!r}; "
                f"valid are: {', '.join(ARCHIVE_COLUMNS)}"
            )
        if self.source == "":
            raise ConfigError("source='': expected a name")


@dataclass
class ArchiveSummary:
    """Counts of archived rows; None for tables that were not selected.

    Attributes
    ----------
    source : str
        Name of the broker.
    history, dead_letters, scheduled : int | None
        Added runs, dead letters and entries.
    removed, gone : int | None
        Dead letters removed from Redis, and dead letters that were deleted or changed meanwhile.
    snapshot : str | None
        The name of the snapshot of the schedule.
    unreadable : int
        Added rows that are unreadable: the archive has only their bytes.
    refused : int
        Unreadable entries of the schedule, which cannot be restored.
    lost : str
        Why runs may be missing, ``""`` if no runs are missing.
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
        """Yield names and counts, line by line."""
        for name in ("history", "dead_letters", "removed", "gone", "scheduled", "unreadable"):
            value = getattr(self, name)
            if value is not None:
                yield name.replace("_", " "), value


def archive(spark: SparkSession, folder: str, options: ArchiveOptions) -> ArchiveSummary:
    """Add new rows to an archive.

    Parameters
    ----------
    folder : str
        On any file system, as ``spark.read.parquet`` takes it.

    Raises
    ------
    ConfigError
        An option is wrong, or the folder is the URL of a database or has a password.
    ArchiveError
        The folder is no archive, or another job added rows at the same time. From Redis, only
        archived dead letters were removed.
    RunsLost
        Runs may be missing, and *on_loss* is ``fail``.
    """
    options.check()
    return _ArchiveJob(spark, folder, options).run()


class _ArchiveJob:
    def __init__(self, spark: SparkSession, folder: str, options: ArchiveOptions) -> None:
        self._spark, self._folder, self._options = spark, folder, options
        self._access = Access.of(options.access)
        with open_client(self._access) as delayq:
            self._source = options.source or delayq.session.stores.address()
            self._now = delayq.session.now_ms()
        self._summary = ArchiveSummary(self._source)

    def run(self) -> ArchiveSummary:
        for table, step in (
            ("history", self._history),
            ("dead_letters", self._dead_letters),
            ("scheduled", self._scheduled),
        ):
            if table in self._options.tables:
                with job_description(self._spark, f"archive {table}"):
                    step()
        return self._summary

    # -- the tables

    def _table(self, name: str) -> ArchivedTable:
        return ArchivedTable(self._spark, self._folder, name, make=True)

    def _history(self) -> None:
        archived = self._table("history")
        last_commit = archived.last_commit
        reached = dict(last_commit.reached) if last_commit is not None else {}
        self._check_source(reached)
        options = self._options
        with open_client(self._access) as delayq:
            stores = delayq.session.stores
            ends = last_runs(stores)
            starts = {name: reached.get(self._history_key(name), START_OFFSET) for name in ends}
            oldest = {
                name: each.oldest_offset() or START_OFFSET
                for name, each in stores.histories.items()
            }
            lost_runs = _find_loss(stores, starts)
            parts = plan_runs(stores, starts, ends, options.partitions, options.batchsize)
        rows = self._read("history", parts)
        staged = archived.stage(rows, self._next(archived)) if parts else None
        # Runs that were lost before the read were found above: only runs that were in Redis when
        # the read began can have been lost since.
        read_from = {name: max(starts[name], oldest[name], key=place_of) for name in starts}
        with open_client(self._access) as delayq:
            lost_runs = lost_runs or _find_loss(delayq.session.stores, read_from)
        if lost_runs and options.on_loss == "fail":
            if staged is not None:
                archived.discard(staged)
            raise RunsLost(f"{lost_runs}. Nothing was added; to continue anyway, set on_loss=warn")
        self._summary.lost, self._summary.history = lost_runs, 0
        if staged is not None:
            reached |= {self._history_key(name): offset for name, offset in ends.items()}
            self._summary.history = self._commit(archived, replace(staged, reached=reached))

    def _dead_letters(self) -> None:
        archived = self._table("dead_letters")
        parts, since = self._parts_of_dead_letters()
        self._summary.dead_letters = 0
        if parts:
            # A dead letter exists twice only if somebody copied it.
            rows = self._read("dead_letters", parts).dropDuplicates(["digest"])
            if archived.last_commit is not None:
                # Dead letters that died before the first one of the plan were restored during this
                # job, and the next job archives them. So the archive is compared from there on.
                some = rows.where(died_since(since))
                rows = some.join(archived.known(since), "digest", "left_anti")
            # Rebalanced, so that files of each day are neither too small nor too large.
            staged = archived.stage(rows.hint("rebalance", "day"), self._next(archived))
            if staged.rows:
                self._summary.dead_letters = self._commit(archived, staged)
            else:
                archived.discard(staged)
        if self._options.remove:
            self._summary.removed, self._summary.gone = self._remove_archived(archived)

    def _scheduled(self) -> None:
        archived = self._table("scheduled")
        commit = self._next(archived)
        # The number of the commit makes the name unique.
        name = f"{moment(self._now):%Y%m%dT%H%M%SZ}-{commit.number}"
        with open_client(self._access) as delayq:
            parts = self._plan(delayq.session.stores, RowFilter("scheduled"))
        # An entry that is moved during the read may be read twice.
        rows = self._read("scheduled", parts, snapshot=name).dropDuplicates(["digest"])
        staged = archived.stage(rows, replace(commit, snapshot=name))
        self._summary.scheduled = self._commit(archived, staged)
        self._summary.snapshot, self._summary.refused = name, staged.unreadable

    def _commit(self, archived: ArchivedTable, staged: Commit) -> int:
        """Add staged rows to the archive; return their number."""
        archived.commit(staged)
        self._summary.unreadable += staged.unreadable
        return staged.rows

    # -- reading

    def _read(
        self,
        table: str,
        parts: Sequence[InputPartition],
        columns: Mapping[str, str] | None = None,
        **constant: str,
    ) -> DataFrame:
        """Return columns of some parts of a table; each part is one Spark task."""
        kinds = columns or ARCHIVE_COLUMNS[table]
        constant["source"] = self._source
        access, limit, number = self._access, self._options.batchsize, len(parts)

        def read(batches: Batches) -> Batches:
            for batch in batches:
                for index in batch.column(0).to_pylist():
                    rows = ArchiveRows(kinds, constant)
                    yield from read_part(access, parts[index], rows, limit)

        return self._spark.range(0, number, 1, max(1, number)).mapInArrow(read, schema_of(kinds))

    def _plan(self, stores: Stores, wanted: RowFilter) -> list[InputPartition]:
        return plan(stores, wanted, self._options.partitions, self._options.batchsize)

    def _parts_of_dead_letters(self) -> tuple[list[InputPartition], date]:
        """Return the parts of selected dead letters, and the day of the first death."""
        high = self._now - int(self._options.older_than * 1000)
        with open_client(self._access) as delayq:
            stores = delayq.session.stores
            parts = self._plan(stores, RowFilter("dead_letters", high=high))
            counts = counts_of(stores)
            died = [
                stores.of(queue).scan.died_ms(queue, None, 0)
                for queue, number in counts.items()
                if number
            ]
        first = min((each for each in died if each is not None), default=0)
        return parts, moment(first).date()

    def _next(self, archived: ArchivedTable) -> Commit:
        last_commit = archived.last_commit
        return Commit(
            table=archived.table,
            number=1 if last_commit is None else last_commit.number + 1,
            made=moment(self._now).isoformat(),
            source=self._source,
            reached={} if last_commit is None else last_commit.reached,
        )

    def _history_key(self, name: str) -> str:
        """Return the key of a history in :attr:`Commit.reached`."""
        return f"{self._source}{_TAG_SEPARATOR}{name}" if name else self._source

    def _check_source(self, reached: Mapping[str, str]) -> None:
        """Raise :class:`ArchiveError` if the archive may have this broker under another name.

        Otherwise the complete history would be archived again.
        """
        known = sorted({name.partition(_TAG_SEPARATOR)[0] for name in reached})
        if known and self._source not in known and self._options.source is None:
            raise ArchiveError(
                f"the archive has the history of {', '.join(known)}, and this broker is "
                f"{self._source}: if both are the same broker, give its name in the archive by the "
                f"option source, else give source={self._source!r}"
            )

    # -- removing

    def _remove_archived(self, archived: ArchivedTable) -> tuple[int, int]:
        """Remove archived dead letters; return ``removed`` and ``gone`` of the summary."""
        parts, since = self._parts_of_dead_letters()
        if not parts or archived.last_commit is None:
            return 0, 0
        dead_letters = self._read("dead_letters", parts, PLACE_COLUMNS)
        removable = dead_letters.join(archived.known(since), "digest", "left_semi")
        numbers, _ = change_rows(removable, self._access, _delete_rows)
        return numbers.get("removed", 0), numbers.get("gone", 0)


def _find_loss(stores: Stores, reached: Offsets) -> str:
    """Return why runs of any history may be lost, ``""`` if no runs are lost."""
    histories = stores.histories.items()
    return next(filter(None, (find_loss(each, reached[name]) for name, each in histories)), "")


def _delete_rows(delayq: DelayQ, batches: Batches) -> Outcomes:
    """Delete unchanged dead letters in Redis; runs on executors."""
    states: Counter[StatusCode] = Counter()
    for batch in batches:
        names = ("queue", "id", "died_ms", "data_digest")
        found = zip(*(batch.column(name).to_pylist() for name in names), strict=True)
        states.update(state for _, state in delete_unchanged(delayq.session, found))
    return Outcomes({"removed": states.pop("d", 0), "gone": states.total()})


@click.command("archive")
@click.option("--folder", required=True, metavar="PATH", help="The folder of the archive, on any "
              "file system that Spark knows.")  # fmt: skip
@jobs.options(ArchiveOptions)
def command(folder: str, options: ArchiveOptions, jars: str | None, as_json: bool) -> bool:
    """Add new runs and dead letters to an archive, or a snapshot of the schedule.

    The archive is a folder of Parquet files. The job may be interrupted and repeated.
    """
    check_archive_folder(folder)
    spark = jobs.session("archive", jars)
    summary = archive(spark, folder, options)
    source, snapshot = summary.source, summary.snapshot
    title = f"{source}, snapshot {snapshot}" if snapshot else source
    jobs.show_summary(summary, title, summary.sums(), as_json=as_json)
    if summary.lost:
        jobs.warn(f"Runs may be missing: {summary.lost}")
    if summary.refused:
        jobs.warn(
            f"{summary.refused:,} scheduled entries cannot be read; "
            "the snapshot has their bytes only"
        )
    return not summary.refused
