"""The command line of ``archive``."""

from __future__ import annotations

from typing import Any

import click

from celery_delayq.spark import jobs
from celery_delayq.spark.archive.folder import check_archive_folder
from celery_delayq.spark.archive.job import ArchiveOptions, archive
from celery_delayq.spark.archive.rows import ARCHIVE_COLUMNS


@click.command("archive")
@click.option("--folder", required=True, metavar="PATH", help="The folder of the archive, on any "
              "file system that Spark knows.")  # fmt: skip
@click.option("--tables", metavar="NAMES", default="history,dead_letters", show_default=True,
              help=f"Tables to archive, with commas: {', '.join(ARCHIVE_COLUMNS)}.")  # fmt: skip
@click.option("--older-than", type=click.FloatRange(0), default=0.0, metavar="SECONDS",
              help="Only dead letters that died at least this many seconds ago.")  # fmt: skip
@click.option("--remove", is_flag=True, help="Remove archived dead letters from Redis.")
@click.option("--source", metavar="NAME", help="Name of the queue in the archive; default: "
              "host, port and database.")  # fmt: skip
@click.option("--on-loss", type=click.Choice(["warn", "fail"]), default="warn", show_default=True,
              help="Action if Redis dropped runs before they were archived.")  # fmt: skip
@click.option("--partitions", type=click.IntRange(1, 10_000), default=8, show_default=True,
              help="Approximate number of parts to read in parallel.")  # fmt: skip
@click.option("--batchsize", type=click.IntRange(1, 10_000), default=1000, show_default=True,
              help="Entries per round trip.")  # fmt: skip
@jobs.options
def command(folder: str, tables: str, jars: str | None, as_json: bool, **given: Any) -> bool:
    """Add new runs and dead letters to an archive, or a snapshot of the schedule.

    The archive is a folder of Parquet files. The job may be interrupted and repeated.
    """
    check_archive_folder(folder)
    access = jobs.access_of(given)
    names = [each.strip() for each in tables.split(",") if each.strip()]
    options = ArchiveOptions(tables=names, access=access, **given)
    options.check()  # before Java is started
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
