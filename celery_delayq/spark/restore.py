"""What was archived is put back: the schedule from a snapshot, or dead letters.

::

    python -m celery_delayq.spark restore --folder s3a://shop/delayq --dry-run
    python -m celery_delayq.spark restore --folder s3a://shop/delayq --overdue skip
    python -m celery_delayq.spark restore --folder s3a://shop/delayq --table dead_letters \\
        --task shop.ship --since 2030-01-31

It may be killed and repeated: what is there is left as it is.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from celery_delayq.spark import jobs
from celery_delayq.spark.archives import targets
from celery_delayq.spark.archives.restoring import Options, Summary, restore

__all__ = ["Options", "Summary", "command", "restore"]


@click.command("restore")
@targets.options
@click.option("--table", type=click.Choice(["scheduled", "dead_letters"]), default="scheduled",
              show_default=True, help="What is put back.")  # fmt: skip
@click.option("--snapshot", metavar="NAME", help="Of the schedule; else the last one.")
@click.option("--source", metavar="NAME", help="What the queue is called in the archive; else that "
              "to which it goes, or the only one there.")  # fmt: skip
@click.option("--queue", metavar="QUEUE", help="Of this queue only.")
@click.option("--task", metavar="TASK", help="Of this task only.")
@click.option("--since", metavar="TIME", help="Due, or died, at this time or later; ISO 8601, UTC "
              "without offset.")  # fmt: skip
@click.option("--until", metavar="TIME", help="Due, or died, at this time or earlier.")
@click.option("--overdue", type=click.Choice(["run", "skip"]), default="run", show_default=True,
              help="What to do with entries that should have run by now.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only tell what would become of them.")
@click.option("--connections", type=click.IntRange(1, 10_000), default=8, show_default=True,
              help="Most that put back side by side.")  # fmt: skip
@jobs.options
def command(jars: str | None, as_json: bool, **given: Any) -> None:
    """Put back what was archived and is missing: the schedule of a snapshot, or dead letters.

    What is there already is left as it is. What has run since the snapshot would run again; --since
    leaves it out. May be interrupted and repeated.
    """
    target = targets.taken(given)
    access = jobs.access_of(given)
    options = Options(access=access, **given)
    options.check()  # before Java is started
    told = restore(spark := jobs.session("restore", jars), target(spark), options)
    if as_json:
        jobs.show_json(asdict(told))
    else:
        dry = " (dry run: nothing was changed)" if told.dry_run else ""
        title = f"snapshot {told.snapshot}" if told.snapshot else "dead letters"
        jobs.show(f"{title}{dry}", told.outcomes.items())
    if told.missing:
        click.echo(f"{told.missing:,} row(s) of the snapshot are missing: its files are not all "
                   "there", err=True)  # fmt: skip
    if told.outcomes.get("refused"):
        jobs.warn(f"{told.outcomes['refused']:,} row(s) refused: {told.why}")
    if told.failed:
        raise click.exceptions.Exit(1)


if __name__ == "__main__":
    # Not this module's own functions: executors know the package, and not "__main__".
    from celery_delayq.spark.restore import command as main

    main(prog_name="restore")
