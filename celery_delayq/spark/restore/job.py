"""The job that restores an archive, by the rules of ``import`` and ``dead import``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from celery_delayq.app import DelayQ
from celery_delayq.errors import ConfigError, RecordError
from celery_delayq.model.dead_letter import DeadFilter
from celery_delayq.model.scheduled import Filter, bound_ms, moment
from celery_delayq.spark.access import Access, open_client
from celery_delayq.spark.archive.commits import ArchiveError, Commit, source_of
from celery_delayq.spark.archive.folder import ArchivedTable
from celery_delayq.spark.archive.rows import died_since, of_source
from celery_delayq.spark.arrow import Batches
from celery_delayq.spark.options import check_choice
from celery_delayq.spark.session import job_description
from celery_delayq.transfer import dead_letter_restore, schedule
from celery_delayq.transfer.dead_letter_row import DeadLetterRow
from celery_delayq.transfer.export_format import meant_of
from celery_delayq.transfer.results import Imported
from celery_delayq.transfer.schedule_row import ScheduleRow
from celery_delayq.utils.portions import batches as chunks

Overdue = Literal["run", "skip"]
Restorable = Literal["scheduled", "dead_letters"]

#: Columns of rows to restore, and of their outcomes.
_ENTRY_COLUMNS = ("queue", "id", "task", "due_ms", "step", "message_id", "message", "problem")
_DEAD_LETTER_COLUMNS = ("queue", "id", "digest", "data")
_OUTCOME_COLUMNS = "outcome STRING, number BIGINT, why STRING"

#: Rows per round trip.
_PAGE_ROWS = 500


@dataclass(frozen=True)
class RestoreOptions:
    """Options for the rows to restore.

    Attributes
    ----------
    table : str
        ``scheduled`` or ``dead_letters``.
    snapshot : str | None
        Name of the snapshot of the schedule; None: the last snapshot of the source.
    source : str | None
        Name of the queue in the archive; None: the queue to restore to, or the only one in the
        archive.
    queue, task : str | None
        Only this queue, only this task.
    since, until : datetime | str | None
        Inclusive bounds of the due time of entries, or of the death of dead letters.
    overdue : str
        ``run`` overdue entries at once, or ``skip`` them.
    dry_run : bool
        Only count outcomes, change nothing.
    connections : int
        Most connections to Redis in parallel.
    access : Mapping[str, str]
        The options ``url``, ``app`` and ``keyprefix`` of the data source.
    """

    table: Restorable = "scheduled"
    snapshot: str | None = None
    source: str | None = None
    queue: str | None = None
    task: str | None = None
    since: datetime | str | None = None
    until: datetime | str | None = None
    overdue: Overdue = "run"
    dry_run: bool = False
    connections: int = 8
    access: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Raise :class:`ConfigError`, or the error of a filter, if an option is wrong."""
        check_choice("table", self.table, Restorable)
        check_choice("overdue", self.overdue, Overdue)
        if self.table == "dead_letters" and (self.snapshot is not None or self.overdue != "run"):
            raise ConfigError("snapshot and overdue are for the table scheduled")
        if not 1 <= self.connections <= 10_000:
            raise ConfigError(f"connections={self.connections!r}: expected 1 to 10000")
        bound_ms("since", self.since)
        bound_ms("until", self.until)
        self.filter()
        self.dead_filter()
        Access.of(self.access)

    def filter(self) -> Filter:
        """Return the filter of entries."""
        return Filter(self.queue, self.task, self.since, self.until)

    def dead_filter(self) -> DeadFilter:
        """Return the filter of dead letters."""
        return DeadFilter(self.queue, self.task, died_from=self.since, died_to=self.until)


@dataclass(frozen=True)
class RestoreSummary:
    """Outcomes of a restore, or of a dry run.

    Attributes
    ----------
    outcomes : Mapping[str, int]
        Counts, named as by ``import``: ``scheduled``, ``ready``, ``restored``, ``duplicate``,
        ``kept``, ``full``, ``overdue``, ``filtered`` and ``refused``.
    snapshot : str | None
        The name of the snapshot.
    missing : int
        Rows of a snapshot that the archive has lost.
    dry_run : bool
        Whether this was a dry run, which changed nothing.
    why : str
        The reason of one of the refused rows.
    """

    outcomes: Mapping[str, int] = field(default_factory=dict)
    snapshot: str | None = None
    missing: int = 0
    dry_run: bool = False
    why: str = ""

    @property
    def total(self) -> int:
        """Number of rows."""
        return sum(self.outcomes.values())

    @property
    def failed(self) -> int:
        """Number of selected rows that could not be restored."""
        return self.outcomes.get("refused", 0) + self.outcomes.get("full", 0) + self.missing


def restore(spark: SparkSession, folder: str, options: RestoreOptions) -> RestoreSummary:
    """Restore missing entries. A repetition is safe: entries that are in Redis stay unchanged.

    Raises
    ------
    ConfigError, InvalidFilter, InvalidETA
        An option is wrong.
    ArchiveError
        The folder is no archive, has no such snapshot, or has several queues and none is chosen.
    """
    options.check()
    with job_description(spark, f"restore {options.table}"):
        archived = ArchivedTable(spark, folder, options.table, make=False)
        with open_client(Access.of(options.access)) as delayq:
            own = delayq.session.stores.address()
        if options.table == "scheduled":
            return _entries(archived, options, own)
        return _put(_dead_letters(archived, options, own).select(*_DEAD_LETTER_COLUMNS), options)


def _entries(archived: ArchivedTable, options: RestoreOptions, own: str) -> RestoreSummary:
    """Restore a snapshot."""
    commit = _snapshot(archived, options, own)
    rows = archived.read().where(F.col("snapshot") == F.lit(commit.snapshot))
    summary = _put(rows.where(~F.col("duplicate")).select(*_ENTRY_COLUMNS), options)
    if summary.total < commit.rows:
        # Entries with an id that another entry has come last: the other one keeps the id.
        duplicates = _put(rows.where(F.col("duplicate")).select(*_ENTRY_COLUMNS), options)
        outcomes = Counter(summary.outcomes) + Counter(duplicates.outcomes)
        why = summary.why or duplicates.why
        summary = replace(summary, outcomes=dict(sorted(outcomes.items())), why=why)
    return replace(summary, snapshot=commit.snapshot, missing=max(0, commit.rows - summary.total))


def _put(rows: DataFrame, options: RestoreOptions) -> RestoreSummary:
    """Restore rows."""
    done = rows.coalesce(options.connections).mapInArrow(partial(_run, options), _OUTCOME_COLUMNS)
    sums = done.groupBy("outcome").agg(F.sum("number"), F.max("why")).collect()
    return RestoreSummary(
        {name: int(number) for name, number, _ in sorted(sums)},
        dry_run=options.dry_run,
        why=next((why for name, _, why in sums if name == "refused"), None) or "",
    )


def _snapshot(archived: ArchivedTable, options: RestoreOptions, own: str) -> Commit:
    """Return the commit of the given snapshot, or of the last snapshot of its source."""
    name = options.snapshot
    if name is None:
        return _last_commit(archived, options.source, own)
    number = name.rpartition("-")[2]
    found = archived.commit_of(int(number)) if number.isdigit() else None
    if found is None or name != found.snapshot or options.source not in (None, found.source):
        last = f"; the last one is {archived.last_commit.snapshot}" if archived.last_commit else ""
        raise ArchiveError(f"snapshot={name!r}: no snapshot has this name{last}")
    return found


def _last_commit(archived: ArchivedTable, source: str | None, own: str) -> Commit:
    """Return the last commit of a source."""
    commits: dict[str, Commit] = {}
    wanted = own if source is None else source
    number = archived.last_commit.number if archived.last_commit is not None else 0
    while number and wanted not in commits:
        commit = archived.commit_of(number)
        if commit is not None:
            commits.setdefault(commit.source, commit)
        number -= 1
    return commits[source_of(commits, source, own)]


def _dead_letters(archived: ArchivedTable, options: RestoreOptions, own: str) -> DataFrame:
    """Return the dead letters of one source and of the selected days."""
    rows = of_source(archived.read(), options.source, own)
    low, high = options.dead_filter().range_ms()
    if low is not None:
        rows = rows.where(died_since(moment(low).date()))
    return rows if high is None else rows.where(F.col("day") <= F.lit(moment(high).date()))


def _run(options: RestoreOptions, batches: Batches) -> Batches:
    """Restore rows; runs on executors, on one connection each."""
    put = _put_entries if options.table == "scheduled" else _put_dead_letters
    report = Imported(options.dry_run)
    rows = (row for batch in batches for row in batch.to_pylist())
    with open_client(Access.of(options.access)) as delayq:
        for page in chunks(rows, _PAGE_ROWS):
            put(delayq, page, options, report)
    why = report.refusals[0].reason if report.refusals else None
    found = [
        {"outcome": name, "number": number, "why": why if name == "refused" else None}
        for name, number in report.outcomes.items()
    ]
    schema = pa.schema({"outcome": pa.string(), "number": pa.int64(), "why": pa.string()})
    yield pa.RecordBatch.from_pylist(found, schema)


def _put_entries(
    delayq: DelayQ, page: Sequence[dict[str, Any]], options: RestoreOptions, report: Imported
) -> None:
    def row_of(fields: dict[str, Any]) -> ScheduleRow | str:
        try:
            if fields["problem"] is not None:
                raise RecordError(fields["problem"])
            return ScheduleRow.of_fields(fields)
        except ValueError as exc:
            return f"{fields['queue']} {str(fields['id'])[:80]!r}: {exc}"

    rows = meant_of(((0, row_of(fields)) for fields in page), report, options.filter())
    if rows:
        schedule.put(delayq.session, rows, report, skip=options.overdue == "skip")


def _put_dead_letters(
    delayq: DelayQ, page: Sequence[dict[str, Any]], options: RestoreOptions, report: Imported
) -> None:
    def row_of(fields: dict[str, Any]) -> DeadLetterRow | str:
        row = DeadLetterRow.of_data(fields["queue"], fields["id"], fields["data"])
        changed = f"id {row.id[:80]!r}: the row is not as it was written"
        return row if row.digest == fields["digest"] else changed

    rows = meant_of(((0, row_of(fields)) for fields in page), report, options.dead_filter())
    dead_letter_restore.restore_of(delayq.session)(rows, report)
