"""The command line of ``restore``."""

from __future__ import annotations

from typing import Any

import click

from celery_delayq.spark import jobs
from celery_delayq.spark.archive.folder import check_archive_folder
from celery_delayq.spark.restore.job import RestoreOptions, restore


@click.command("restore")
@click.option("--folder", required=True, metavar="PATH", help="The folder of the archive, on any "
              "file system that Spark knows.")  # fmt: skip
@click.option("--table", type=click.Choice(["scheduled", "dead_letters"]), default="scheduled",
              show_default=True, help="Table to restore.")  # fmt: skip
@click.option("--snapshot", metavar="NAME", help="Snapshot of the schedule; default: the last one.")
@click.option("--source", metavar="NAME", help="Name of the queue in the archive; default: the "
              "queue to restore to, or the only one in the archive.")  # fmt: skip
@click.option("--queue", metavar="QUEUE", help="Only this queue.")
@click.option("--task", metavar="TASK", help="Only this task.")
@click.option("--since", metavar="TIME", help="Only entries due (or dead letters died) at this "
              "time or later; ISO 8601, UTC if there is no offset.")  # fmt: skip
@click.option("--until", metavar="TIME", help="Only entries of this time or earlier.")
@click.option("--overdue", type=click.Choice(["run", "skip"]), default="run", show_default=True,
              help="Action for overdue entries.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only show the outcomes, change nothing.")
@click.option("--connections", type=click.IntRange(1, 10_000), default=8, show_default=True,
              help="Most connections to Redis in parallel.")  # fmt: skip
@jobs.options
def command(folder: str, jars: str | None, as_json: bool, **given: Any) -> bool:
    """Restore missing entries from an archive: a snapshot of the schedule, or dead letters.

    Entries that are in Redis stay as they are. Tasks that have run since the snapshot run again;
    --since leaves them out. The job may be interrupted and repeated.
    """
    check_archive_folder(folder)
    access = jobs.access_of(given)
    options = RestoreOptions(access=access, **given)
    options.check()  # before Java is started
    spark = jobs.session("restore", jars)
    summary = restore(spark, folder, options)
    title = f"snapshot {summary.snapshot}" if summary.snapshot else "dead letters"
    jobs.show_summary(summary, title, summary.outcomes.items(), as_json=as_json)
    if summary.missing:
        jobs.warn(f"{summary.missing:,} row(s) of the snapshot are missing: some files are gone")
    if summary.outcomes.get("refused"):
        jobs.warn(f"{summary.outcomes['refused']:,} row(s) refused: {summary.why}")
    return not summary.failed
