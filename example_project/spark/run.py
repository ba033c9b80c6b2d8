"""The steps of the demonstration: start Redis and Spark, run the steps, end all."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack

from rich.console import Console

from celery_delayq.embedded import EmbeddedRedis
from example_project.command import WrongSums, log_folder
from example_project.services import Services
from example_project.settings import BROKER_URL_VARIABLE
from example_project.spark import show
from example_project.spark.options import Options
from example_project.spark.session import session


def run(options: Options, console: Console) -> None:
    """Run the demonstration.

    Raises `WrongSums`, and `ServiceError` if a worker did not start or ended too early.
    """
    with (
        log_folder(console, "flight-pipeline-", options.keep) as folder,
        EmbeddedRedis() as server,
        ExitStack() as stack,
    ):
        environment = {BROKER_URL_VARIABLE: server.url_for("delayq+redis")}
        os.environ.update(environment)
        # Not earlier: the app reads the environment when it is imported.
        from example_project.spark.course import Course

        show.step(console, 1, "Redis and Spark")
        with console.status("Starting Spark"):
            spark = stack.enter_context(session(folder))
        console.print(f"  Redis {server.version} on port {server.port}, Spark {spark.version}")

        services = stack.enter_context(Services(environment, folder, "example_project.spark.app"))
        course = Course(options, console, spark, folder)
        course.load()
        course.apply_news()
        course.run_the_day(services)
        services.stop()
        course.report()
        comparison = course.compare()
    options.summary.write_text(json.dumps(comparison, indent=1) + "\n")
    if comparison["problems"]:
        raise WrongSums(comparison["problems"])
