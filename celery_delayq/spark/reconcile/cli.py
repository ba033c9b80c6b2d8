"""The command line of ``reconcile``."""

from __future__ import annotations

from typing import Any

import click

from celery_delayq.spark import jobs
from celery_delayq.spark.jdbc import PASSWORD_VARIABLE, read_jdbc
from celery_delayq.spark.options import WriteOptions
from celery_delayq.spark.reconcile.job import reconcile
from celery_delayq.spark.reconcile.options import ReconcileOptions

#: Up to a hundred years.
_SECONDS_TYPE = click.FloatRange(0, 100 * 366 * 86_400)

_RANGE_OPTIONS = ("partition_column", "lower_bound", "upper_bound", "partitions")


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
@click.option("--task", required=True, metavar="NAME", help="The task, such as mail.remind.")
@click.option("--key", required=True, metavar="COLUMN", help="Column that identifies a row.")
@click.option("--eta", required=True, metavar="COLUMN", help="Column with the ETA.")
@click.option(
    "--arguments", metavar="COLUMNS", help="Columns that are arguments; default: all others."
)
@click.option(
    "--created-column", "created", metavar="COLUMN", help="Column with the time of creation."
)
@click.option("--grace", type=_SECONDS_TYPE, metavar="SECONDS", help="Leave rows unchanged that "
              "are newer than this; default 3600 with --created-column.")  # fmt: skip
@click.option("--finished-within", type=_SECONDS_TYPE, metavar="SECONDS", default=86_400,
              show_default=True, help="Leave rows unchanged whose task ended less than this ago, "
              "by the history.")  # fmt: skip
@click.option("--orphans", type=click.Choice(["report", "cancel"]), default="report",
              show_default=True, help="Action for tasks without a row.")  # fmt: skip
@click.option("--max-orphans", type=click.IntRange(0), metavar="NUMBER", help="With more "
              "orphans, change nothing and fail.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only show the outcomes, change nothing.")
@click.option("--queue", help="The queue; default: by the app's routes.")
@click.option("--priority", type=int, help="Priority of the tasks.")
@click.option("--batchsize", type=int, default=500, show_default=True, help="Rows per round trip.")
@click.option(
    "--ratelimit", type=float, metavar="ROWS", help="Most rows per second and Spark task."
)
@click.option("--refused", metavar="FOLDER", help="Folder for rows that cannot be scheduled.")
@jobs.options
def command(
    jdbc_url: str, arguments: str | None, jars: str | None, as_json: bool, **given: Any
) -> bool:
    """Schedule rows that are pending in a database and missing in the queue.

    Tasks of changed rows are replaced. Rows stay unchanged if their task is ready, runs, waits for
    a retry, is dead or has just finished. The job may be interrupted and repeated.
    """
    database = {name: given.pop(name) for name in ("table", "query", "user", "driver")}
    if (database["table"] is None) == (database["query"] is None):
        raise click.UsageError("give either --table or --query")
    if given["grace"] is None:
        given["grace"] = 3600.0
    elif given["created"] is None:
        raise click.UsageError("--grace needs --created-column")
    ranges = tuple(given.pop(name) for name in _RANGE_OPTIONS)
    if any(ranges) and not all(ranges):
        raise click.UsageError(
            "--partition-column, --lower-bound, --upper-bound and --partitions go together"
        )
    access = jobs.access_of(given)
    options = ReconcileOptions(
        **given,
        arguments=None if arguments is None else [each.strip() for each in arguments.split(",")],
        access=access,
    )
    WriteOptions.of(options.writing())  # before Java is started
    spark = jobs.session(f"reconcile {options.task}", jars)
    rows = read_jdbc(spark, jdbc_url, **database, partitioned=ranges if all(ranges) else None)
    summary = reconcile(spark, rows, options)
    jobs.show_summary(summary, options.task, summary.sums(), as_json=as_json)
    if summary.refused:
        jobs.warn(f"{summary.refused:,} row(s) refused: {summary.why}")
    return not summary.refused
