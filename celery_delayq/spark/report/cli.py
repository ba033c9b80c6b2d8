"""The command line of ``report``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from celery_delayq.errors import ConfigError
from celery_delayq.spark import check, jobs
from celery_delayq.spark.report import terminal
from celery_delayq.spark.report.html_page import page
from celery_delayq.spark.report.job import ReportOptions, report, save


@click.command("report")
@click.option("--history", metavar="FOLDER", help="Folder of an archived history; default: Redis.")
@click.option("--source", metavar="NAME", help="Name of the queue, if an archive has several.")
@click.option("--since", metavar="TIME", help="Only runs that ended then or later; ISO 8601, UTC.")
@click.option("--until", metavar="TIME", help="Only runs that ended before.")
@click.option("--task", metavar="NAME", help="Only this task.")
@click.option("--queue", metavar="NAME", help="Only this queue.")
@click.option("--ahead", type=float, metavar="HOURS", default=24.0, show_default=True,
              help="Hours of future load to report; 0 for none.")  # fmt: skip
@click.option(
    "--step", type=int, metavar="SECONDS", help="Step of the timeline; default: at most 90 steps."
)
@click.option(
    "--parquet", metavar="FOLDER", help="Write the tables as Parquet, each to its sub-folder."
)
@click.option("--html", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
              help="Write an HTML page with charts, on the driver.")  # fmt: skip
@click.option("--title", metavar="TEXT", help="Title of the page.")
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
    """Report how tasks ran, and which tasks are scheduled.

    The report has runs, throughput, failures, retries and quantiles of lateness by task, queue and
    hour; planned and started runs, attempts, reasons of failures, and the load to come. It needs
    the history (setting "history" of the workers' app).
    """
    access = jobs.access_of(given)
    options = ReportOptions(**given, access=access)
    options.check()  # before Java is started
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
        html.write_text(page(run_report) if title is None else page(run_report, title), "utf-8")
    if as_json:
        click.echo(json.dumps(run_report.as_dict()))
    else:
        terminal.show(run_report)


def _is_within(folder: str, archive: str | None) -> bool:
    """Return whether a reader of the archive would read the folder, too."""
    return archive is not None and f"{folder.rstrip('/')}/".startswith(f"{archive.rstrip('/')}/")
