"""Rows that are pending in a database, against the queue: what is missing there is scheduled.

::

    python -m celery_delayq.spark reconcile --jdbc-url jdbc:postgresql://db/shop \\
        --query "SELECT flight, remind_at, gate, created FROM reminders WHERE NOT sent" \\
        --task mail.remind --key flight --eta remind_at --created-column created

Rows and entries are joined by id, ``<task>:<key>``, as the writer of the data source makes it; only
what is missing or has changed is written. So a job that failed is completed by the next one, and a
second one finds nothing to do.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from celery_delayq.spark import jobs
from celery_delayq.spark.jdbc import PASSWORD, read_jdbc
from celery_delayq.spark.options import WriteOptions
from celery_delayq.spark.reconciliation import Options, Summary, TooManyOrphans, reconcile

__all__ = ["Options", "Summary", "TooManyOrphans", "command", "read_jdbc", "reconcile"]


#: Up to a hundred years.
_SECONDS = click.FloatRange(0, 100 * 366 * 86_400)


@click.command("reconcile")
@click.option("--jdbc-url", default="jdbc:derby:delayq", metavar="URL", show_default=True,
              help="The database, without a password; else the Derby in Spark, in the folder "
              "delayq here.")  # fmt: skip
@click.option("--table", metavar="TABLE", help="A table or view of what is pending.")
@click.option("--query", metavar="SQL", help="A SELECT of what is pending.")
@click.option("--user", help=f"Of the database; its password is {PASSWORD} in the environment.")
@click.option("--driver", metavar="CLASS", help="Of JDBC, where Java does not find it by the URL.")
@click.option("--partition-column", metavar="COLUMN", help="Read side by side by its ranges.")
@click.option("--lower-bound", metavar="VALUE", help="Where its ranges begin.")
@click.option("--upper-bound", metavar="VALUE", help="Where they end; all rows are read.")
@click.option("--partitions", type=click.IntRange(1), help="How many ranges.")
@click.option("--task", required=True, metavar="NAME", help="The task, such as mail.remind.")
@click.option("--key", required=True, metavar="COLUMN", help="What identifies a row.")
@click.option("--eta", required=True, metavar="COLUMN", help="When its task is due.")
@click.option("--arguments", metavar="COLUMNS", help="Those that are arguments; else all others.")
@click.option("--created-column", "created", metavar="COLUMN", help="When a row was made.")
@click.option("--grace", type=_SECONDS, metavar="SECONDS", help="How long a row is too "
              "new to be looked at; 3600 where there is --created-column.")  # fmt: skip
@click.option("--finished-within", type=_SECONDS, metavar="SECONDS", default=86_400,
              show_default=True, help="How long rows are left alone whose tasks have ended, as "
              "history tells.")  # fmt: skip
@click.option("--orphans", type=click.Choice(["report", "cancel"]), default="report",
              show_default=True, help="What becomes of tasks without a row.")  # fmt: skip
@click.option("--max-orphans", type=click.IntRange(0), metavar="NUMBER", help="Where there are "
              "more, change nothing and fail.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Tell what would be done, change nothing.")
@click.option("--queue", help="The queue; else that of the app's routes.")
@click.option("--priority", type=int, help="Of the tasks.")
@click.option("--batchsize", type=int, default=500, show_default=True, help="Rows sent together.")
@click.option("--ratelimit", type=float, metavar="ROWS", help="Most per second and Spark task.")
@click.option("--refused", metavar="FOLDER", help="Where rows go that cannot be scheduled.")
@jobs.options
def command(
    *,
    jdbc_url: str,
    table: str | None,
    query: str | None,
    user: str | None,
    driver: str | None,
    partition_column: str | None,
    lower_bound: str | None,
    upper_bound: str | None,
    partitions: int | None,
    arguments: str | None,
    grace: float | None,
    jars: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Schedule rows that are pending in a database and missing in the queue.

    What has changed is moved; rows whose task is ready, runs, waits for a retry, is dead or has
    just finished are left alone. May be interrupted and repeated.
    """
    if (table is None) == (query is None):
        raise click.UsageError("give either --table or --query")
    if grace is not None and given["created"] is None:
        raise click.UsageError("--grace needs --created-column")
    ranges = (partition_column, lower_bound, upper_bound, partitions)
    partitioned = None
    if partition_column and lower_bound and upper_bound and partitions:
        partitioned = partition_column, lower_bound, upper_bound, partitions
    elif any(ranges):
        raise click.UsageError(
            "--partition-column, --lower-bound, --upper-bound and --partitions go together"
        )
    access = jobs.access_of(given)
    options = Options(
        **given,
        arguments=None if arguments is None else [each.strip() for each in arguments.split(",")],
        grace=3600.0 if grace is None else grace,
        access=access,
    )
    WriteOptions.of(options.writing())  # before Java is started
    spark = jobs.session(f"reconcile {options.task}", jars)
    rows = read_jdbc(
        spark,
        jdbc_url,
        table=table,
        query=query,
        user=user,
        driver=driver,
        partitioned=partitioned,
    )
    summary = reconcile(spark, rows, options)
    if as_json:
        jobs.show_json(asdict(summary))
    else:
        dry = " (dry run: nothing was changed)" if summary.dry_run else ""
        jobs.show(f"{options.task}{dry}", summary.sums())
    if summary.refused:
        jobs.warn(f"{summary.refused:,} row(s) refused: {summary.why}")
        raise click.exceptions.Exit(1)


if __name__ == "__main__":
    # Not this module's own functions: executors know the package, and not "__main__".
    from celery_delayq.spark.reconcile import command as main

    main(prog_name="reconcile")
