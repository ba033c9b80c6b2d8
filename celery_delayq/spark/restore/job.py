"""The job that restores an archive by the rules of ``import`` and ``dead import``; its command."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, Literal

import click
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from celery_delayq.app import DelayQ
from celery_delayq.errors import ConfigError, RecordError
from celery_delayq.model.dead_letter import DeadFilter
from celery_delayq.model.scheduled import Filter, bound_ms, moment
from celery_delayq.spark import jobs
from celery_delayq.spark.access import Access, open_client
from celery_delayq.spark.archive.commits import ArchiveError, Commit, source_of
from celery_delayq.spark.archive.folder import ArchivedTable, check_archive_folder
from celery_delayq.spark.archive.rows import died_since, of_source
from celery_delayq.spark.executors import Batches, Outcomes, change_rows
from celery_delayq.spark.options import COUNT_TYPE, JobOptions, one_of, option
from celery_delayq.spark.session import job_description
from celery_delayq.transfer import dead_letter_restore, schedule
from celery_delayq.transfer.dead_letter_row import DeadLetterRow
from celery_delayq.transfer.export_format import meant_of
from celery_delayq.transfer.results import Imported
from celery_delayq.transfer.schedule_row import ScheduleRow
from celery_delayq.utils.portions import batches as chunks

Overdue = Literal["run", "skip"]
Restorable = Literal["scheduled", "dead_letters"]

#: Columns of rows to restore.
_ENTRY_COLUMNS = (*ScheduleRow._fields, "problem")
_DEAD_LETTER_COLUMNS = ("queue", "id", "digest", "data")

#: Rows per round trip.
_PAGE_ROWS = 500


@dataclass(frozen=True)
class RestoreOptions(JobOptions):
    """Options for the rows to restore.

    Attributes
    ----------
    table : str
        ``scheduled`` or ``dead_letters``.
    snapshot : str | None
        Name of the snapshot of the schedule; None: the last snapshot of the source.
    source : str | None
        Name of the broker in the archive; None: the broker to restore to, or the only one in the
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
    """

    table: Restorable = option("scheduled", "Table to restore.", type=one_of(Restorable))
    snapshot: str | None = option(None, "Snapshot of the schedule; default: the last one.", "NAME")
    source: str | None = option(
        None,
        "Name of the broker in the archive; default: the broker to restore to, or the only one in "
        "the archive.",
        "NAME",
    )
    queue: str | None = option(None, "Only this queue.", "QUEUE")
    task: str | None = option(None, "Only this task.", "TASK")
    since: datetime | str | None = option(
        None,
        "Only entries due (or dead letters died) at this time or later; ISO 8601, UTC if there is "
        "no offset.",
        "TIME",
    )
    until: datetime | str | None = option(None, "Only entries of this time or earlier.", "TIME")
    overdue: Overdue = option("run", "Action for overdue entries.", type=one_of(Overdue))
    dry_run: bool = option(False, "Only show the outcomes, change nothing.", type=click.BOOL)
    connections: int = option(8, "Most connections to Redis in parallel.", type=COUNT_TYPE)

    def check(self) -> None:
        """Raise :class:`ConfigError`, or the error of a filter, if an option is wrong."""
        super().check()
        if self.table == "dead_letters" and (self.snapshot is not None or self.overdue != "run"):
            raise ConfigError("snapshot and overdue are for the table scheduled")
        bound_ms("since", self.since)
        bound_ms("until", self.until)
        self.dead_filter()

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
        The folder is no archive, has no such snapshot, or has several brokers and none is chosen.
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
    numbers, why = change_rows(
        rows, Access.of(options.access), partial(_put_batches, options), options.connections
    )
    return RestoreSummary(numbers, dry_run=options.dry_run, why=why)


def _snapshot(archived: ArchivedTable, options: RestoreOptions, own: str) -> Commit:
    """Return the commit of the given snapshot, or of the last snapshot of its source."""
    name = options.snapshot
    if name is None:
        return _last_commit(archived, options.source, own)
    number = name.rpartition("-")[2]
    found = archived.commit_of(int(number)) if number.isdigit() else None
    if found is None or name != found.snapshot or options.source not in (None, found.source):
        advice = (
            f"; the last one is {archived.last_commit.snapshot}" if archived.last_commit else ""
        )
        raise ArchiveError(f"snapshot={name!r}: no snapshot has this name{advice}")
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


def _put_batches(options: RestoreOptions, delayq: DelayQ, batches: Batches) -> Outcomes:
    """Restore rows; runs on executors."""
    put = _put_entries if options.table == "scheduled" else _put_dead_letters
    report = Imported(options.dry_run)
    rows = (row for batch in batches for row in batch.to_pylist())
    for page in chunks(rows, _PAGE_ROWS):
        put(delayq, page, options, report)
    return Outcomes(report.outcomes, report.refusals[0].reason if report.refusals else "")


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

    lines = ((0, row_of(fields)) for fields in page)
    rows = meant_of(lines, report, options.filter(), delayq.session.renames)
    if rows:
        schedule.put(delayq.session, rows, report, skip=options.overdue == "skip")


def _put_dead_letters(
    delayq: DelayQ, page: Sequence[dict[str, Any]], options: RestoreOptions, report: Imported
) -> None:
    def row_of(fields: dict[str, Any]) -> DeadLetterRow | str:
        row = DeadLetterRow.of_data(fields["queue"], fields["id"], fields["data"])
        changed = f"id {row.id[:80]!r}: the row is not as it was written"
        return row if row.digest == fields["digest"] else changed

    lines = ((0, row_of(fields)) for fields in page)
    rows = meant_of(lines, report, options.dead_filter(), delayq.session.renames)
    dead_letter_restore.restore_of(delayq.session)(rows, report)


@click.command("restore")
@click.option("--folder", required=True, metavar="PATH", help="The folder of the archive, on any "
              "file system that Spark knows.")  # fmt: skip
@jobs.options(RestoreOptions)
def command(folder: str, options: RestoreOptions, jars: str | None, as_json: bool) -> bool:
    """Restore missing entries from an archive: a snapshot of the schedule, or dead letters.

    Entries that are in Redis stay as they are. Tasks that have run since the snapshot run again;
    --since leaves them out. The job may be interrupted and repeated.
    """
    check_archive_folder(folder)
    spark = jobs.session("restore", jars)
    summary = restore(spark, folder, options)
    title = f"snapshot {summary.snapshot}" if summary.snapshot else "dead letters"
    jobs.show_summary(summary, title, summary.outcomes.items(), as_json=as_json)
    if summary.missing:
        jobs.warn(f"{summary.missing:,} row(s) of the snapshot are missing: some files are gone")
    if summary.outcomes.get("refused"):
        jobs.warn(f"{summary.outcomes['refused']:,} row(s) refused: {summary.why}")
    return not summary.failed
