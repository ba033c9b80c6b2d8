"""History, dead letters and the schedule to Parquet files or a database, each once.

::

    python -m celery_delayq.spark archive --folder s3a://shop/delayq
    python -m celery_delayq.spark archive --jdbc-url jdbc:postgresql://db/shop --user shop \\
        --tables dead_letters --older-than 604800 --remove

It may be killed and repeated: the next one adds what is missing. What is archived is put back by
:mod:`celery_delayq.spark.restore`.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from celery_delayq.spark import jobs
from celery_delayq.spark.archives import targets
from celery_delayq.spark.archives.adding import Options, Summary, archive
from celery_delayq.spark.archives.commits import ArchiveError
from celery_delayq.spark.archives.databases import DatabaseTarget
from celery_delayq.spark.archives.folders import FolderTarget
from celery_delayq.spark.archives.rows import COLUMNS

__all__ = [
    "ArchiveError", "DatabaseTarget", "FolderTarget", "Options", "Summary", "archive", "command"
]  # fmt: skip


@click.command("archive")
@targets.options
@click.option("--tables", metavar="NAMES", default="history,dead_letters", show_default=True,
              help=f"Of {', '.join(COLUMNS)}, with commas between them.")  # fmt: skip
@click.option("--older-than", type=click.FloatRange(0), default=0.0, metavar="SECONDS",
              help="Only dead letters that died so long ago.")  # fmt: skip
@click.option("--remove", is_flag=True, help="Remove dead letters from Redis that the archive has.")
@click.option("--source", metavar="NAME", help="What the queue is called in the archive; else "
              "host, port and database.")  # fmt: skip
@click.option("--on-loss", type=click.Choice(["warn", "fail"]), default="warn", show_default=True,
              help="When runs are forgotten before they were archived.")  # fmt: skip
@click.option("--partitions", type=click.IntRange(1, 10_000), default=8, show_default=True,
              help="About how many parts are read side by side.")  # fmt: skip
@click.option("--batchsize", type=click.IntRange(1, 10_000), default=1000, show_default=True,
              help="Entries of one round trip.")  # fmt: skip
@jobs.options
def command(tables: str, jars: str | None, as_json: bool, **given: Any) -> None:
    """Add to an archive what it has not yet: runs, dead letters, a snapshot of the schedule.

    The archive is a folder of Parquet files, or a database. May be interrupted and repeated.
    """
    target = targets.taken(given)
    access = jobs.access_of(given)
    names = [each.strip() for each in tables.split(",") if each.strip()]
    options = Options(tables=names, access=access, **given)
    options.check()  # before Java is started
    told = archive(spark := jobs.session("archive", jars), target(spark), options)
    if as_json:
        jobs.show_json(asdict(told))
    else:
        snapshot = f", snapshot {told.snapshot}" if told.snapshot else ""
        jobs.show(f"{told.source}{snapshot}", told.sums())
    if told.lost:
        jobs.warn(f"Runs may be missing: {told.lost}")
    if told.refused:
        click.echo(
            f"{told.refused:,} scheduled entries cannot be read; the snapshot has their bytes only",
            err=True,
        )
        raise click.exceptions.Exit(1)


if __name__ == "__main__":
    # Not this module's own functions: executors know the package, and not "__main__".
    from celery_delayq.spark.archive import command as main

    main(prog_name="archive")
