"""The steps of the demonstration, one after the other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from rich.console import Console

from celery_delayq.spark import report as reports
from example_project.flights import midnight
from example_project.plan import CompressedClock
from example_project.services import Services
from example_project.spark import agreement, pipeline, placing, show, source
from example_project.spark.agreement import CANCELLED, RUN, WAITS
from example_project.spark.app import delayq
from example_project.spark.day import run_day, start_workers, waiting
from example_project.spark.options import Options
from example_project.spark.watching import watching

#: Seconds between the choice of the day's begin and the begin. Its rows are written meanwhile. If
#: the writing takes longer, overdue tasks run at once.
LEAD_S = 10.0

#: Number of hours to come in the report's load: the year begins within two weeks.
LOAD_HOURS = 24.0 * 380


class Course:
    """The steps; call each once, in the order of this class."""

    def __init__(
        self, options: Options, console: Console, spark: SparkSession, folder: Path
    ) -> None:
        self._options, self._console, self._spark, self._folder = options, console, spark, folder
        self._durations: dict[str, float] = {}

    def load(self) -> None:
        """Schedule reminders of all flights in the queue."""
        show.step(self._console, 2, "The year, from CSV through Spark into the queue")
        shift = placing.weeks_until(datetime.now(timezone.utc))
        self._placed = placing.moved(source.reminded(), shift)
        with self._watched("load"):
            path = source.unpack(self._folder)
            self._flights = source.read_flights(
                self._spark, path, self._options.day, self._options.flights
            )
            scheduled = self._flights.withColumn("departure", F.col("scheduled"))
            rows = source.rows(scheduled, self._placed)
            self._first = pipeline.bring_up_to_date(self._spark, rows)
        show.sums(self._console, self._first)

    def apply_news(self) -> None:
        """Move the reminders of late flights, and cancel those of cancelled ones."""
        show.step(self._console, 3, "The news: reminders of late flights move, cancelled ones go")
        kind = (
            F.when(source.is_cancelled(), CANCELLED)
            .when(F.col("day") == F.lit(self._options.day), RUN)
            .otherwise(WAITS)
        )
        self._known = self._flights.withColumn("departure", source.departure_known())
        self._known = self._known.withColumn("kind", kind)
        with self._watched("news"):
            still = self._known.where(F.col("kind") != CANCELLED)
            rows = source.rows(still, self._placed)
            self._second = pipeline.bring_up_to_date(self._spark, rows, orphans="cancel")
        show.sums(self._console, self._second)

    def run_the_day(self, services: Services) -> None:
        """Bring one day forward, and let workers run it."""
        day, seconds = self._options.day, self._options.seconds
        show.step(self._console, 4, f"{day:%A}, {day.day} {day:%B}, in {seconds:g} s")
        start_workers(self._console, services, self._options.workers)
        # The clock of this machine, which its Redis uses too.
        starts_ms = round((time.time() + LEAD_S) * 1000)
        clock = CompressedClock(midnight(day), starts_ms, seconds)
        self._fast = placing.compressed(source.reminded(), clock)
        rows = source.rows(self._known.where(F.col("kind") == RUN), self._fast)
        before = waiting().total
        with self._watched("forward"):
            self._forward = pipeline.replace(rows)
        flights = self._forward["replaced"]
        self._console.print(f"  {flights:,} reminders brought forward")
        with self._timed("day"):
            run_day(self._console, services, clock, flights, rest=before - flights)

    def report(self) -> None:
        """Make a page about finished and future tasks."""
        show.step(self._console, 5, "The report, from the history of runs")
        with self._watched("report"):
            options = reports.Options(access=pipeline.ACCESS, ahead=LOAD_HOURS)
            run_report = reports.report(self._spark, options)
            title = f"{self._options.day:%A, %d %B %Y}: departure reminders of New York"
            self._options.html.write_text(reports.page(run_report, title), "utf-8")
        self._console.print(f"  Page: {self._options.html}")

    def compare(self) -> dict[str, Any]:
        """Compare source, queue and history; return the results, with the `problems`."""
        show.step(self._console, 6, "Do they agree?")
        due = F.when(F.col("kind") == RUN, self._fast).when(F.col("kind") == WAITS, self._placed)
        with self._watched("compare"):
            news = agreement.news_in(self._known)
            expected = self._known.select("flight", "kind", due.alias("due"))
            lines = agreement.compare(self._spark, expected)
        now = waiting()
        unfinished = {"ready": now.ready, "leased": now.leased, "dead": now.dead}
        found = list(
            agreement.problems(news, self._first, self._second, self._forward, lines, unfinished)
        )
        show.result(self._console, lines)
        if not found:
            show.verdict(self._console, news, lines)
        return {
            "source": asdict(news),
            "first": asdict(self._first),
            "second": asdict(self._second),
            "forward": self._forward,
            "lines": {line.kind: asdict(line) for line in lines},
            "unfinished": unfinished,
            "seconds": self._durations,
            "problems": found,
        }

    @contextmanager
    def _watched(self, name: str) -> Iterator[None]:
        with (
            self._timed(name),
            watching(self._console, self._spark, lambda: delayq.count()),
        ):
            yield

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._durations[name] = round(time.monotonic() - began, 1)
