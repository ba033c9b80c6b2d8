"""The command behind ``make demo``: one day of flights in a minute."""

from __future__ import annotations

import math
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from celery_delayq.errors import DelayQError
from example_project.command import WrongSums, end_by_exceptions, folder_made
from example_project.flights import FlightDataError
from example_project.run import Options, run
from example_project.services import ServiceError


def _finite(context: click.Context, option: click.Parameter, value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a number of seconds", context, option)
    return value


@click.command(context_settings={"show_default": True})
@click.option(
    "--day",
    type=click.DateTime(["%Y-%m-%d"]),
    default="2013-03-08",
    help="First day of flights, in 2013. The default is one of a snow storm: 180 of its 979 "
    "flights were cancelled and 394 left more than an hour late.",
)
@click.option("--days", type=click.IntRange(1, 365), default=1, help="How many days of flights.")
@click.option(
    "--broker",
    type=click.Choice(["redis", "cluster", "rabbitmq"]),
    default="redis",
    help="Where the reminders wait: a single Redis, a Redis Cluster of three masters, or RabbitMQ, "
    "which needs a rabbitmq-server.",
)
@click.option(
    "--flights",
    type=click.IntRange(1),
    help="Take only so many flights, spread evenly over the time.  [default: all]",
)
@click.option(
    "--seconds-per-day",
    type=click.FloatRange(1, 86_400),
    default=60.0,
    callback=_finite,
    help="Real seconds that a day of flights takes.",
)
@click.option(
    "--seconds-before",
    type=click.FloatRange(0, 3600),
    callback=_finite,
    help="Real seconds for publishing before the day begins.  [default: by their number]",
)
@click.option("--workers", type=click.IntRange(1, 16), default=2, help="Celery workers.")
@click.option(
    "--concurrency", type=click.IntRange(1, 64), default=4, help="Threads of each worker."
)
@click.option(
    "--picture",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    default=Path("build/demo.png"),
    callback=folder_made,
    help="Where the picture goes.",
)
@click.option("--flower/--no-flower", default=True, help="Start Flower too.")
@click.option(
    "--keep", "--stay", is_flag=True, help="Leave all running until Ctrl-C, and keep the logs."
)
def main(day: datetime, **chosen: Any) -> None:
    """Send the departure reminders of real flights, a day in a minute, and check the sums.

    Reminders of late flights are moved, those of cancelled flights are cancelled. Each that runs
    sends a webhook to a receiver that fails at times. A periodic task reports on the traffic of
    each hour. Starts a private Redis, Celery workers, the receiver and Flower, and ends them again.
    Exit code 1 if a reminder was lost, early, sent twice, sent at the time from which it was moved
    or after it was cancelled, if a webhook was neither delivered once nor a dead letter, or if an
    hour has not one report, with the flights that the data has.

    With RabbitMQ as broker, a reminder that is due asks whether it is still wanted. With that or a
    cluster, the records of the demonstration are in a private Redis beside it.
    """
    end_by_exceptions()
    try:
        run(Options(day=day.date(), **chosen), Console())
    except (FlightDataError, DelayQError, ServiceError, WrongSums) as error:
        raise click.ClickException(str(error)) from error
