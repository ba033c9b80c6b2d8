"""How tasks ran, and what is to come: from the history of runs, or an archive of it.

::

    python -m celery_delayq.spark report --since 2026-01-31 --html report.html

In Python::

    from celery_delayq.spark.report import Options, page, report
    told = report(spark, Options(access={"url": "redis://localhost:6379/0"}))
    told.tasks["mail.remind"].lateness.p99          # ms
    Path("report.html").write_text(page(told), "utf-8")
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from celery_delayq.errors import ConfigError
from celery_delayq.spark import jobs
from celery_delayq.spark.reports import text
from celery_delayq.spark.reports.figures import Report
from celery_delayq.spark.reports.making import Options, report, save
from celery_delayq.spark.reports.page import check as check_page
from celery_delayq.spark.reports.page import page

__all__ = ["Options", "Report", "command", "page", "report", "save"]


@click.command("report")
@click.option("--history", metavar="FOLDER", help="An archive of the history; else that in Redis.")
@click.option("--source", metavar="NAME", help="What the queue is called in an archive, if that "
              "has several.")  # fmt: skip
@click.option("--since", metavar="TIME", help="Runs that ended then or later, in ISO 8601; UTC.")
@click.option("--until", metavar="TIME", help="Runs that ended before.")
@click.option("--task", metavar="NAME", help="Of this task only.")
@click.option("--queue", metavar="NAME", help="Of this queue only.")
@click.option("--ahead", type=float, metavar="HOURS", default=24.0, show_default=True,
              help="How far the load to come is told; 0 for not at all.")  # fmt: skip
@click.option("--step", type=int, metavar="SECONDS", help="Of the timeline; else at most 90 steps.")
@click.option("--parquet", metavar="FOLDER", help="Write the tables there, each in its sub-folder.")
@click.option("--html", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
              help="Write a page with pictures, on the driver.")  # fmt: skip
@click.option("--title", metavar="TEXT", help="Of the page.")
@jobs.options
def command(
    *,
    parquet: str | None,
    html: Path | None,
    title: str | None,
    jars: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Tell how tasks ran, and what is to come.

    By task, queue and hour: runs, throughput, failures, retries, and quantiles of lateness; plan
    against runs, attempts, reasons of failures, and the load to come. The history has to be
    switched on.
    """
    access = jobs.access_of(given)
    options = Options(**given, access=access)
    options.check()  # before Java is started
    if html is not None:
        check_page()
        if not html.parent.is_dir():
            raise ConfigError(f"--html {html}: there is no folder {html.parent}")
    if parquet is not None and _is_within(parquet, options.history):
        raise ConfigError(f"--parquet {parquet}: that is where the archive is; name another folder")
    spark = jobs.session("report", jars)
    told = report(spark, options)
    if parquet is not None:
        save(spark, told, parquet)
    if html is not None:
        html.write_text(page(told) if title is None else page(told, title), "utf-8")
    if as_json:
        jobs.show_json(told.as_dict())
    else:
        text.show(told)


def _is_within(folder: str, archive: str | None) -> bool:
    """Return whether a reader of the archive would come across the folder."""
    return archive is not None and f"{folder.rstrip('/')}/".startswith(f"{archive.rstrip('/')}/")


if __name__ == "__main__":
    # Not this module's own functions: executors know the package, and not "__main__".
    from celery_delayq.spark.report import command as main

    main(prog_name="report")
