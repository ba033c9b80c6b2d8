"""The job that makes a report, and its command. The driver only gets sums.

Times are ms since 1970, so the time zone of the session does not matter.
"""

from __future__ import annotations

import json
import math
import operator
import os
from dataclasses import dataclass, replace
from pathlib import Path

import click
from pyspark import StorageLevel
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from celery_delayq.errors import ConfigError
from celery_delayq.model.scheduled import moment
from celery_delayq.spark import check, jobs
from celery_delayq.spark.access import URL_VARIABLES, Access, open_client
from celery_delayq.spark.archive.rows import of_source
from celery_delayq.spark.options import JobOptions, ReadOptions, option
from celery_delayq.spark.read.filters import RowFilter
from celery_delayq.spark.read.readers import row_filter_of
from celery_delayq.spark.read.tables import read_table
from celery_delayq.spark.report import terminal
from celery_delayq.spark.report.figures import Load, LoadAhead, RunReport, step_for
from celery_delayq.spark.report.html_page import DEFAULT_TITLE, page
from celery_delayq.spark.report.sums import HOUR_MS, MINUTE_MS, attempts, by_kind, reasons, timeline

_NEEDED_COLUMNS = (
    *("id", "task", "queue", "state", "due", "promoted", "started", "ended"),
    *("deliveries", "reason", "raw"),
)


#: The year 3000, in ms. A page cannot show later times, nor times before 1970.
_MAX_TIME_MS = 32_503_680_000_000

#: Default steps of the timeline and of the load to come, and the most steps.
_DEFAULT_STEPS, _DEFAULT_LOAD_STEPS, _MAX_STEPS = 90, 30, 10_000


#: Up to ten years.
_HOURS_TYPE = click.FloatRange(0, 24 * 3660)


@dataclass(frozen=True)
class ReportOptions(JobOptions):
    """Options for the runs to report.

    Attributes
    ----------
    history : str | None
        Folder of an archived history; None: the history in Redis.
    source : str | None
        Name of the broker, if the archive has several.
    since, until : str | None
        Only runs with ``since <= end < until``. ISO 8601, UTC if there is no offset.
    task, queue : str | None
        Only this task or queue, also in the load to come.
    ahead : float
        Hours of the load to come; 0 for none. With an archive it needs *access*, or the URL in
        the environment.
    step : int | None
        Seconds of a step of the timeline; None: at most 90 steps.
    """

    history: str | None = option(None, "Folder of an archived history; default: Redis.", "FOLDER")
    source: str | None = option(None, "Name of the broker, if an archive has several.", "NAME")
    since: str | None = option(None, "Only runs that ended then or later; ISO 8601, UTC.", "TIME")
    until: str | None = option(None, "Only runs that ended before.", "TIME")
    task: str | None = option(None, "Only this task.", "NAME")
    queue: str | None = option(None, "Only this queue.", "NAME")
    ahead: float = option(
        24.0, "Hours of future load to report; 0 for none.", "HOURS", type=_HOURS_TYPE
    )
    step: int | None = option(
        None, "Step of the timeline; default: at most 90 steps.", "SECONDS", type=click.IntRange(1)
    )

    def filters(self) -> dict[str, str]:
        """Return the filters that are given."""
        given = {name: getattr(self, name) for name in ("since", "until", "task", "queue")}
        return {name: value for name, value in given.items() if value is not None}

    def wanted(self) -> RowFilter:
        """Return the filter of runs."""
        return row_filter_of(ReadOptions.of(self.reading("history")))

    def check(self) -> None:
        """Raise :class:`ConfigError` if an option is wrong."""
        super().check()
        wanted = self.wanted()
        if wanted.low is not None and wanted.high is not None and wanted.high < wanted.low:
            raise ConfigError(f"since={self.since!r} is not before until={self.until!r}")
        if self.source is not None and self.history is None:
            raise ConfigError(f"source={self.source!r} is for an archive: give history, too")

    def reading(self, table: str) -> dict[str, str]:
        """Return the options for reading a table of the data source."""
        filters = self.filters()
        if table != "history":
            filters = {name: filters[name] for name in ("task", "queue") if name in filters}
        return {**self.access, **filters, "table": table}


def report(spark: SparkSession, options: ReportOptions | None = None) -> RunReport:
    """Return the figures of runs and of scheduled tasks.

    This takes about seven Spark jobs. Runs are read once; executors cache them.

    Raises
    ------
    ConfigError
        An option is wrong, or the folder is no archive.
    ArchiveError
        The archive has several brokers and none is chosen, or it has no such broker.
    """
    return _ReportJob(spark, options or ReportOptions()).run()


def save(spark: SparkSession, run_report: RunReport, folder: str) -> None:
    """Write the tables of a report as Parquet. Each table replaces its sub-folder."""
    for name, table in run_report.tables():
        frame = spark.createDataFrame(table).coalesce(1)
        frame.write.mode("overwrite").parquet(f"{folder.rstrip('/')}/{name}")


class _ReportJob:
    def __init__(self, spark: SparkSession, options: ReportOptions) -> None:
        self._spark, self._options = spark, options
        options.check()

    def run(self) -> RunReport:
        options = self._options
        run_report = RunReport(source=options.history or "history", filters=options.filters())
        found = self._runs().persist(StorageLevel.MEMORY_AND_DISK)
        try:
            run_report = self._summed(run_report, found)
        finally:
            found.unpersist()
        return replace(run_report, ahead=self._ahead())

    def _summed(self, run_report: RunReport, found: DataFrame) -> RunReport:
        is_good = ~F.col("unreadable")
        [bounds] = found.agg(
            F.count_if(~is_good).alias("unreadable"),
            F.min(F.when(is_good, F.col("began"))).alias("first"),
            F.max(F.when(is_good, F.col("ended"))).alias("last"),
            # Not the minimum: a single ETA may be years ago.
            F.percentile_approx(F.when(is_good & F.col("planned"), F.col("due")), 0.01).alias(
                "due"
            ),
        ).collect()
        run_report = replace(run_report, unreadable=bounds.unreadable)
        if bounds.last is None:
            return run_report
        first, last = bounds.first, max(bounds.first, bounds.last)
        begins = min(first, first if bounds.due is None else bounds.due)
        step = self._step((last - begins) / 1000)
        runs = found.where(is_good)
        return replace(
            run_report,
            first=moment(first),
            last=moment(last),
            **by_kind(runs, first, last),
            attempts=attempts(runs),
            reasons=reasons(runs),
            step=step,
            timeline=timeline(runs, begins, last, step),
        )

    def _step(self, seconds: float) -> int:
        step = self._options.step
        if step is None:
            return step_for(seconds, _DEFAULT_STEPS)
        if seconds / step > _MAX_STEPS:
            least = math.ceil(seconds / _MAX_STEPS)
            raise ConfigError(f"step={step}: too short for {seconds:,.0f} s, at least {least}")
        return step

    # -- runs

    def _runs(self) -> DataFrame:
        """Return the columns of runs that figures need."""
        rows = self._live() if self._options.history is None else self._archived()
        times = {
            name: F.unix_millis(name).alias(name)
            for name in ("due", "promoted", "started", "ended")
        }
        texts = [F.col(name) for name in ("id", "task", "queue", "state", "reason", "deliveries")]
        unreadable = F.col("raw").isNotNull().alias("unreadable")
        due, promoted, started, ended = map(F.col, times)
        # If a run was promoted when due and began earlier, the worker's clock is slow.
        advanced = (started < due) & ~F.coalesce(promoted >= due, F.lit(False))
        is_planned = due.isNotNull() & started.isNotNull() & ~F.coalesce(advanced, F.lit(False))
        began = F.coalesce(started, ended)
        return rows.select(*texts, *times.values(), unreadable).select(
            *("id", "task", "queue", "state", "reason"),
            (
                F.col("unreadable")
                | ~(began.between(0, _MAX_TIME_MS) & ended.between(0, _MAX_TIME_MS))
            ).alias("unreadable"),
            *("due", "started", "ended"),
            began.alias("began"),
            F.floor(ended / MINUTE_MS).alias("minute"),
            (F.floor(ended / HOUR_MS) * HOUR_MS).alias("hour"),
            F.coalesce(F.col("deliveries") > 1, F.lit(False)).alias("redelivered"),
            F.coalesce(advanced, F.lit(False)).alias("advanced"),
            is_planned.alias("planned"),
            F.when(promoted >= due, promoted - due).alias("promotion"),
            (started - promoted).alias("wait"),
            F.when(is_planned, started - due).alias("lateness"),
            (ended - started).alias("runtime"),
        )

    def _live(self) -> DataFrame:
        return read_table(self._spark, self._options.reading("history"), *_NEEDED_COLUMNS)

    def _archived(self) -> DataFrame:
        folder, wanted = self._options.history or "", self._options.wanted()
        try:
            rows = self._spark.read.parquet(folder)
        except AnalysisException as exc:
            reason = str(exc).splitlines()[0]
            raise ConfigError(f"history={folder!r}: no archive is there: {reason}") from exc
        missing = [name for name in _NEEDED_COLUMNS if name not in rows.columns]
        if missing:
            raise ConfigError(
                f"history={folder!r} is no archive of the history: it has no column "
                f"{', '.join(missing)}; there are: {', '.join(rows.columns)}"
            )
        if "source" in rows.columns:  # sums over several brokers are meaningless
            rows = of_source(rows, self._options.source)
        for name, values in (("task", wanted.tasks), ("queue", wanted.queues)):
            if values is not None:
                rows = rows.where(F.col(name).isin(*values))
        for bound, is_in in ((wanted.low, operator.ge), (wanted.high, operator.le)):
            if bound is None:
                continue
            rows = rows.where(is_in(F.unix_millis("ended"), bound))
            if "day" in rows.columns:  # so that Spark skips other folders
                day = F.col("day").cast("string")
                rows = rows.where(is_in(day, F.lit(f"{moment(bound):%Y-%m-%d}")))
        return rows

    # -- the load to come

    def _ahead(self) -> LoadAhead | None:
        options = self._options
        known = {*options.access} & {"url", "app"} or {*URL_VARIABLES} & os.environ.keys()
        if not options.ahead or (options.history is not None and not known):
            return None
        with open_client(Access.of(options.access)) as delayq:
            now = delayq.session.now_ms()
        span = round(options.ahead * HOUR_MS)
        width = 1000 * step_for(span / 1000, _DEFAULT_LOAD_STEPS)
        begins = now // width * width
        ends = begins + -(-(now + span - begins) // width) * width
        reading = options.reading("scheduled")
        rows = read_table(self._spark, reading, "queue", "task", "state", "due")
        due = F.unix_millis("due")
        when = (
            F.when(F.col("state").isin("paused", "held"), "held")
            .when(due < now, "overdue")
            .when(due >= ends, "later")
            .otherwise("due")
        )
        at = F.when(F.col("when") == "due", F.floor(F.col("due") / width) * width)
        task = F.coalesce("task", F.lit("")).alias("task")
        entries = rows.select("queue", task, when.alias("when"), due.alias("due"))
        found = entries.groupBy("queue", "task", "when", at.alias("at")).count().collect()
        loads = (
            Load(queue, task, kind, None if ms is None else moment(ms), number)
            for queue, task, kind, ms, number in found
        )
        order = sorted(loads, key=lambda x: (x.queue, x.task, x.when, x.at or moment(0)))
        return LoadAhead(moment(now), moment(begins), moment(ends), width // 1000, tuple(order))


@click.command("report")
@click.option(
    "--parquet", metavar="FOLDER", help="Write the tables as Parquet, each to its sub-folder."
)
@click.option("--html", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
              help="Write an HTML page with charts, on the driver.")  # fmt: skip
@click.option(
    "--title", metavar="TEXT", default=DEFAULT_TITLE, show_default=True, help="Title of the page."
)
@jobs.options(ReportOptions)
def command(
    *,
    parquet: str | None,
    html: Path | None,
    title: str,
    options: ReportOptions,
    jars: str | None,
    as_json: bool,
) -> None:
    """Report how tasks ran, and which tasks are scheduled.

    The report has runs, throughput, failures, retries and quantiles of lateness by task, queue and
    hour; planned and started runs, attempts, reasons of failures, and the load to come. It needs
    the history (setting "history" of the workers' app).
    """
    if html is not None:
        check("jinja2")
        if not html.parent.is_dir():
            raise ConfigError(f"--html {html}: there is no folder {html.parent}")
    if parquet is not None and _is_within(parquet, options.history):
        raise ConfigError(f"--parquet {parquet}: the archive is in this folder; name another one")
    spark = jobs.session("report", jars)
    run_report = report(spark, options)
    if parquet is not None:
        save(spark, run_report, parquet)
    if html is not None:
        html.write_text(page(run_report, title), "utf-8")
    if as_json:
        click.echo(json.dumps(run_report.as_dict()))
    else:
        terminal.show(run_report)


def _is_within(folder: str, archive: str | None) -> bool:
    """Return whether a reader of the archive would read the folder, too."""
    return archive is not None and f"{folder.rstrip('/')}/".startswith(f"{archive.rstrip('/')}/")
