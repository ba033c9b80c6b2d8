"""The command behind ``make demo-spark``: a year of flights through Spark into the queue."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from celery_delayq.errors import DelayQError
from celery_delayq.spark import (
    check,
    check_java,
)
from example_project.command import WrongSums, end_by_exceptions, folder_made
from example_project.flights import YEAR, FlightDataError
from example_project.services import ServiceError


def _path(name: str, default: str, what: str) -> Any:
    return click.option(
        name,
        type=click.Path(dir_okay=False, writable=True, path_type=Path),
        default=Path(default),
        callback=folder_made,
        help=what,
    )


@click.command(context_settings={"show_default": True})
@click.option(
    "--day",
    type=click.DateTime(["%Y-%m-%d"]),
    default="2013-03-08",
    help="The day that workers run. The default is one of a snow storm: 180 of its 979 flights "
    "were cancelled.",
)
@click.option(
    "--flights",
    type=click.IntRange(1),
    help="Take so many flights only, those from that day on.  [default: all]",
)
@click.option("--seconds", type=click.FloatRange(1, 3600), default=40.0, help="What the day takes.")
@click.option("--workers", type=click.IntRange(1, 16), default=2, help="Celery workers.")
@_path("--html", "build/demo-spark.html", "Where the report goes.")
@_path("--summary", "build/demo-spark.json", "Where the sums go, as JSON.")
@click.option("--keep", is_flag=True, help="Keep the logs.")
def main(day: datetime, **chosen: Any) -> None:
    """Bring a year of flights through Spark into the queue, run a day of it, and check the sums.

    All flights that left New York in 2013 go from CSV into the queue, a reminder for each. The
    news moves those of late flights and cancels those of cancelled ones. Ordinary Celery workers
    run one day, and the report on it is made from their history. Starts a private Redis, Spark and
    the workers, and ends them again. Exit code 1 if source, queue and history do not agree on each
    flight.
    """
    if day.year != YEAR:
        raise click.BadParameter(f"{day:%Y-%m-%d} is outside the data, which covers {YEAR}")
    end_by_exceptions()
    try:
        check()
        check_java()
        from example_project.spark.options import Options
        from example_project.spark.run import run

        run(Options(day=day.date(), **chosen), Console())
    except (FlightDataError, DelayQError, ServiceError, WrongSums) as error:
        raise click.ClickException(str(error)) from error
