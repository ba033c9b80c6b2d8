"""The job that makes a report. The driver only gets sums.

Times are ms since 1970, so the time zone of the session does not matter.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pyspark import StorageLevel
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from celery_delayq.errors import ConfigError
from celery_delayq.model.scheduled import moment
from celery_delayq.spark.access import URL_VARIABLES, open_client
from celery_delayq.spark.archive.rows import of_source
from celery_delayq.spark.options import ReadOptions
from celery_delayq.spark.read.filters import RowFilter
from celery_delayq.spark.read.tables import TABLE_COLUMNS
from celery_delayq.spark.report.figures import Load, LoadAhead, RunReport, step_for
from celery_delayq.spark.report.sums import HOUR_MS, MINUTE_MS, attempts, by_kind, reasons, timeline

_NEEDED_COLUMNS = (
    *("id", "task", "queue", "state", "due", "promoted", "started", "ended"),
    *("deliveries", "reason", "raw"),
)


#: The year 3000, in ms. A page cannot show later times, nor times before 1970.
_MAX_TIME_MS = 32_503_680_000_000

#: Default steps of the timeline and of the load to come, and the most steps.
_DEFAULT_STEPS, _DEFAULT_LOAD_STEPS, _MAX_STEPS = 90, 30, 10_000


@dataclass(frozen=True)
class ReportOptions:
    """Options for the runs to report.

    Attributes
    ----------
    history : str | None
        Folder of an archived history; None: the history in Redis.
    source : str | None
        Name of the queue, if the archive has several.
    since, until : str | None
        Only runs with ``since <= end < until``. ISO 8601, UTC if there is no offset.
    task, queue : str | None
        Only this task or queue, also in the load to come.
    ahead : float
        Hours of the load to come; 0 for none. With an archive it needs *access*, or the URL in
        the environment.
    step : int | None
        Seconds of a step of the timeline; None: at most 90 steps.
    access : Mapping[str, str]
        The options ``url``, ``app`` and ``keyprefix`` of the data source.
    """

    history: str | None = None
    source: str | None = None
    since: str | None = None
    until: str | None = None
    task: str | None = None
    queue: str | None = None
    ahead: float = 24.0
    step: int | None = None
    access: Mapping[str, str] = field(default_factory=dict)

    def filters(self) -> dict[str, str]:
        """Return the filters that are given."""
        given = {name: getattr(self, name) for name in ("since", "until", "task", "queue")}
        return {name: value for name, value in given.items() if value is not None}

    def check(self) -> RowFilter:
        """Return the filter of runs.

        Raises
        ------
        ConfigError
            An option is wrong.
        """
        wanted = RowFilter.of(ReadOptions.of(self.reading("history")))
        if wanted.low is not None and wanted.high is not None and wanted.high < wanted.low:
            raise ConfigError(f"since={self.since!r} is not before until={self.until!r}")
        if self.source is not None and self.history is None:
            raise ConfigError(f"source={self.source!r} is for an archive: give history, too")
        if not 0 <= self.ahead <= 24 * 3660:
            raise ConfigError(f"ahead={self.ahead!r}: expected hours, from 0 to those of ten years")
        if self.step is not None and not (isinstance(self.step, int) and self.step >= 1):
            raise ConfigError(f"step={self.step!r}: expected whole seconds, at least 1")
        return wanted

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
        The archive has several queues and none is chosen, or it has no such queue.
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
        self._wanted = options.check()

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
        columns = ", ".join(f"{name} {TABLE_COLUMNS['history'][name]}" for name in _NEEDED_COLUMNS)
        reader = self._spark.read.schema(columns).format("celery_delayq")
        return reader.options(**self._options.reading("history")).load()

    def _archived(self) -> DataFrame:
        folder, wanted = self._options.history or "", self._wanted
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
        if "source" in rows.columns:  # sums over several queues are meaningless
            rows = of_source(rows, self._options.source)
        for name, value in (("task", self._options.task), ("queue", self._options.queue)):
            if value is not None:
                rows = rows.where(F.col(name) == value)
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
        with open_client(ReadOptions.of(options.reading("scheduled")).access) as delayq:
            now = delayq.session.now_ms()
        span = round(options.ahead * HOUR_MS)
        width = 1000 * step_for(span / 1000, _DEFAULT_LOAD_STEPS)
        begins = now // width * width
        ends = begins + -(-(now + span - begins) // width) * width
        columns = "queue STRING, task STRING, state STRING, due TIMESTAMP_LTZ"
        reader = self._spark.read.schema(columns).format("celery_delayq")
        rows = reader.options(**options.reading("scheduled")).load()
        due = F.unix_millis("due")
        when = (
            F.when(F.col("state") == "paused", "paused")
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
