"""The job that compares rows with the queue, and its command.

The job is one join of ids. The driver only gets sums.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any

import click
from click.core import ParameterSource
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType, TimestampNTZType

from celery_delayq.errors import ConfigError
from celery_delayq.model.scheduled import moment
from celery_delayq.spark import jobs
from celery_delayq.spark.access import open_client
from celery_delayq.spark.arrow import arrow_schema
from celery_delayq.spark.executors import change_rows
from celery_delayq.spark.jdbc import PASSWORD_VARIABLE, read_jdbc
from celery_delayq.spark.options import WriteOptions
from celery_delayq.spark.read.tables import read_table
from celery_delayq.spark.reconcile.options import (
    ReconcileOptions,
    ReconcileSummary,
    TooManyOrphans,
    check_columns,
)
from celery_delayq.spark.reconcile.verdicts import (
    ID_COLUMN,
    OWN_PREFIX,
    PRESENT_STATES,
    STATE_RANKS,
    VERDICT_COLUMN,
    WHY_COLUMN,
    cancel,
    drop_present_rows,
    judge,
)
from celery_delayq.spark.session import setting
from celery_delayq.spark.write.rows import TaskRows
from celery_delayq.spark.write.sender import queue_of
from celery_delayq.spark.write.writer import write

#: Options of the command line for reading ranges in parallel.
_RANGE_OPTIONS = ("partition_column", "lower_bound", "upper_bound", "partitions")

#: Without this setting a small cached result would keep 200 partitions.
_COALESCE_SETTING = "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning"


def reconcile(spark: SparkSession, rows: DataFrame, options: ReconcileOptions) -> ReconcileSummary:
    """Schedule the tasks of missing rows, and replace the tasks of changed rows.

    Rows may come from any source. Before orphans are cancelled, the rows are read again: only tasks
    that still have no row are cancelled.

    Raises
    ------
    ConfigError
        An option is wrong, a column is missing or of another type, or the task goes to an exchange
        and no queue is given.
    TooManyOrphans
        There are more orphans than ``max_orphans``; nothing was changed.
    """
    return _ReconcileJob(spark, rows, options).run()


class _ReconcileJob:
    def __init__(self, spark: SparkSession, rows: DataFrame, options: ReconcileOptions) -> None:
        options.check()
        self._spark, self._options = spark, options
        self._writing = WriteOptions.of(options.writing())
        self._all = rows
        check_columns(rows, options)
        named = options.arguments
        if named is None:
            used = (options.key, options.eta, options.created, WHY_COLUMN)
            named = [name for name in rows.columns if name not in used]
        self._columns = [options.key, options.eta, *named]
        TaskRows(self._writing, arrow_schema(rows.select(*map(_quoted, self._columns)).schema))
        with open_client(self._writing.access) as delayq:
            queue = queue_of(delayq.app, self._writing)
            if queue is None:
                raise ConfigError(
                    f"{options.task} goes to an exchange: name its queue by the option queue"
                )
            self._queue, self._now = queue, delayq.session.now_ms()
            renames = delayq.session.renames
            #: The present name of the task, which also finds its former names; all its names.
            self._task = renames.of(options.task)
            self._names = renames.names(self._task)

    def run(self) -> ReconcileSummary:
        with setting(self._spark, _COALESCE_SETTING, "true"):
            judged = self._joined().persist(StorageLevel.MEMORY_AND_DISK)
        try:
            return self._done(judged)
        finally:
            judged.unpersist()

    def _done(self, judged: DataFrame) -> ReconcileSummary:
        found = judged.groupBy(VERDICT_COLUMN).agg(F.count("*"), F.min(WHY_COLUMN)).collect()
        number = Counter({verdict: count for verdict, count, _ in found})
        summary = ReconcileSummary(
            rows=number.total() - number["orphan"],
            young=number["young"],
            present={state: number[state] for state in PRESENT_STATES},
            new=number["new"],
            replaced=number["changed"] + number["foreign"],
            kept=number["kept"],
            refused=number["refused"],
            orphans=number["orphan"],
            dry_run=self._options.dry_run,
            why=next((text for verdict, _, text in found if verdict == "refused"), ""),
        )
        if summary.dry_run:
            return summary
        most = self._options.max_orphans
        if most is not None and summary.orphans > most:
            raise TooManyOrphans(
                f"{summary.orphans:,} scheduled tasks have no row, and max_orphans is {most:,}: "
                "nothing was changed; check the rows of the query, or raise max_orphans"
            )

        def rows_with(*verdicts: str) -> DataFrame:
            return judged.where(F.col(VERDICT_COLUMN).isin(*verdicts))

        if summary.refused and self._options.refused is not None:
            refused = rows_with("refused").select(*map(_quoted, self._columns), WHY_COLUMN)
            refused.write.mode("append").parquet(self._options.refused)
        # The writer would not replace these tasks: they have no unique key, or another one.
        cancelled_first = (
            self._cancel(rows_with("foreign").select(ID_COLUMN), True) if number["foreign"] else 0
        )
        if wanted := summary.new + summary.replaced:
            written = self._write(rows_with("new", "changed", "foreign"))
            summary.new, summary.replaced = (
                written["new"] - cancelled_first,
                written["replaced"] + cancelled_first,
            )
            summary.refused += written["refused"]
            summary.kept += wanted - summary.new - summary.replaced - written["refused"]
            summary.why = summary.why or written.get("why", "")
        if summary.orphans and self._options.orphans == "cancel":
            current = self._all.select(self._id_column().alias(ID_COLUMN))
            orphans = rows_with("orphan").select(ID_COLUMN)
            summary.cancelled = self._cancel(orphans.join(current, ID_COLUMN, "left_anti"), False)
        return summary

    # -- reading

    def _joined(self) -> DataFrame:
        """Return all rows and orphans with a verdict for each."""
        young = F.lit(False) if self._options.created is None else self._is_young()
        rows = self._all.select(
            *map(_quoted, self._columns),
            self._id_column().alias(ID_COLUMN),
            F.coalesce(young, F.lit(False)).alias(f"{OWN_PREFIX}young"),
        ).withColumn(f"{OWN_PREFIX}times", F.count("*").over(Window.partitionBy(ID_COLUMN)))
        entries = self._entries()
        joined = rows.join(entries, F.col(ID_COLUMN) == F.col(f"{OWN_PREFIX}entry"), "full_outer")
        fields = [
            StructField(each.name, each.dataType)
            for each in rows.select(*map(_quoted, self._columns)).schema.fields
        ]
        more = [StructField(name, StringType()) for name in (ID_COLUMN, VERDICT_COLUMN, WHY_COLUMN)]
        judging = partial(judge, self._writing, self._names, self._columns)
        return joined.mapInArrow(judging, StructType([*fields, *more]))

    def _is_young(self) -> Column:
        created = self._options.created or ""
        edge = moment(self._now) - timedelta(seconds=self._options.grace)
        text = edge.replace(tzinfo=None).isoformat(" ")
        is_naive = isinstance(self._all.schema[created].dataType, TimestampNTZType)
        literal = f"TIMESTAMP_NTZ'{text}'" if is_naive else f"TIMESTAMP'{text} UTC'"
        return F.col(_quoted(created)) > F.expr(literal)

    def _id_column(self) -> Column:
        key = self._all[_quoted(self._options.key)].cast("string")
        return F.concat(F.lit(f"{self._options.task}:"), key)

    def _entries(self) -> DataFrame:
        """Return the state of each task once.

        Tables are read in the order in which tasks move through them. So a task that moves during
        the read is read twice and not missed.
        """
        message_columns = ("eta", "args", "kwargs", "unique_key")
        scheduled = self._table("scheduled", "id", "queue", "retries", *message_columns)
        state = (
            F.when(F.col("retries") > 0, "retry")
            .when(F.col("queue") != self._queue, "elsewhere")
            .otherwise("scheduled")
        )
        found = scheduled.select("id", state.alias("state"), *message_columns)
        since = moment(max(0, self._now - int(self._options.finished_within * 1000)))
        ended = self._table("history", "id", "state", since=since.isoformat())
        # A cancelled message stays in its ready list until a worker takes it.
        ready = self._table("ready", "id", "cancelled")
        for state_name, frame in (
            ("ready", ready.where(~F.col("cancelled"))),
            ("leased", self._table("leased", "id")),
            ("dead", self._table("dead_letters", "task_id")),
            ("finished", ended.where(F.col("state") != "RETRY")),
        ):
            id = frame.columns[0]
            some = frame.select(F.col(id).alias("id"), F.lit(state_name).alias("state"))
            found = found.unionByName(some, allowMissingColumns=True)
        rank = F.array_position(F.array(*map(F.lit, STATE_RANKS)), F.col("state"))
        first = F.min_by(F.struct("state", *message_columns), rank)
        # Other ids of the task belong to no row: the app sent these tasks itself.
        ours = found.where(F.col("id").startswith(f"{self._options.task}:"))
        grouped = ours.groupBy("id").agg(first.alias("first"))
        return grouped.select(
            F.col("id").alias(f"{OWN_PREFIX}entry"),
            *(
                F.col(f"first.{name}").alias(f"{OWN_PREFIX}{name}")
                for name in ("state", *message_columns)
            ),
        )

    def _table(self, table: str, *names: str, **more: str) -> DataFrame:
        given = {**self._options.access, "table": table, "task": self._task, **more}
        return read_table(self._spark, given, *names)

    # -- writing

    def _write(self, rows: DataFrame) -> Mapping[str, Any]:
        missing = rows.mapInArrow(
            partial(drop_present_rows, self._writing, self._queue), rows.schema
        )
        return write(missing.select(*map(_quoted, self._columns)), self._options.writing())

    def _cancel(self, ids: DataFrame, ready: bool) -> int:
        """Cancel scheduled tasks, with *ready* also ready tasks; return the number of them."""
        numbers, _ = change_rows(ids, self._writing.access, partial(cancel, ready))
        return numbers.get("cancelled", 0)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


@click.command("reconcile")
@click.option("--jdbc-url", default="jdbc:derby:delayq", metavar="URL", show_default=True,
              help="Database URL without a password; default: Spark's Derby.")  # fmt: skip
@click.option("--table", metavar="TABLE", help="A table or view of pending rows.")
@click.option("--query", metavar="SQL", help="A SELECT of pending rows.")
@click.option(
    "--user", help=f"User of the database; {PASSWORD_VARIABLE} in the environment is the password."
)
@click.option("--driver", metavar="CLASS", help="JDBC driver, if Java does not find it by the URL.")
@click.option(
    "--partition-column", metavar="COLUMN", help="Read ranges of this column in parallel."
)
@click.option("--lower-bound", metavar="VALUE", help="Begin of the ranges.")
@click.option(
    "--upper-bound", metavar="VALUE", help="End of the ranges; rows outside are read, too."
)
@click.option("--partitions", type=click.IntRange(1), help="Number of ranges.")
@jobs.options(ReconcileOptions)
def command(
    jdbc_url: str, options: ReconcileOptions, jars: str | None, as_json: bool, **database: Any
) -> bool:
    """Schedule rows that are pending in a database and missing in the queue.

    Tasks of changed rows are replaced. Rows stay unchanged if their task is ready, runs, waits for
    a retry, is dead or has just finished. The job may be interrupted and repeated.
    """
    if (database["table"] is None) == (database["query"] is None):
        raise click.UsageError("give either --table or --query")
    source = click.get_current_context().get_parameter_source("grace")
    if source is ParameterSource.COMMANDLINE and options.created is None:
        raise click.UsageError("--grace needs --created-column")
    ranges = tuple(database.pop(name) for name in _RANGE_OPTIONS)
    if any(ranges) and not all(ranges):
        raise click.UsageError(
            "--partition-column, --lower-bound, --upper-bound and --partitions go together"
        )
    spark = jobs.session(f"reconcile {options.task}", jars)
    rows = read_jdbc(spark, jdbc_url, **database, partitioned=ranges if all(ranges) else None)
    summary = reconcile(spark, rows, options)
    jobs.show_summary(summary, options.task, summary.sums(), as_json=as_json)
    if summary.refused:
        jobs.warn(f"{summary.refused:,} row(s) refused: {summary.why}")
    return not summary.refused
