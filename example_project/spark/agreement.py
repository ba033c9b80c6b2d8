"""Whether source, queue and history agree, by the id of each task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from celery_delayq.spark.reconcile import Summary
from example_project.spark.pipeline import TASK, read
from example_project.spark.source import is_cancelled, is_late

#: The final states of a flight, in the order of the table.
RUN, WAITS, CANCELLED, UNKNOWN = "run", "waits", "cancelled", "unknown"


@dataclass(frozen=True)
class Line:
    """Flights of one kind: number in the source, number in the queue, and runs in the history.

    `wrong` counts the ids with an unexpected state, such as `example`.
    """

    kind: str
    source: int
    queue: int
    history: int
    wrong: int
    example: str | None


@dataclass(frozen=True)
class News:
    """Number of flights, and number of flights with news."""

    flights: int
    late: int
    cancelled: int


def news_in(flights: DataFrame) -> News:
    """Count flights, and flights with news."""
    [counts] = flights.agg(
        F.count("*").alias("flights"),
        F.count_if(is_late()).alias("late"),
        F.count_if(is_cancelled()).alias("cancelled"),
    ).collect()
    return News(**counts.asDict())


def compare(spark: SparkSession, expected: DataFrame) -> list[Line]:
    """Compare flights with scheduled tasks and with runs.

    Parameters
    ----------
    expected : DataFrame
        Of each flight `flight`, its `kind`, and when it is `due` if it is not cancelled.
    """
    source = expected.select(F.concat(F.lit(f"{TASK}:"), "flight").alias("id"), "kind", "due")
    scheduled = read(spark, "scheduled", "id STRING, due TIMESTAMP")
    queue = scheduled.groupBy("id").agg(
        F.count("*").alias("entries"), F.min("due").alias("entry_due")
    )
    ended = read(spark, "history", "id STRING, state STRING, due TIMESTAMP, started TIMESTAMP")
    runs = ended.groupBy("id").agg(
        F.count("*").alias("runs"),
        F.first("state").alias("state"),
        F.min("due").alias("run_due"),
        F.min("started").alias("started"),
    )
    both = source.join(queue, "id", "full_outer").join(runs, "id", "full_outer")
    has_entry, has_run = F.col("entries").isNotNull(), F.col("runs").isNotNull()
    ran = (F.col("runs") == 1) & (F.col("state") == "SUCCESS")
    in_time = (F.col("run_due") == F.col("due")) & (F.col("started") >= F.col("due"))
    waits = (F.col("entries") == 1) & (F.col("entry_due") == F.col("due"))
    is_right = (
        F.when(F.col("kind") == RUN, ~has_entry & ran & in_time)
        .when(F.col("kind") == WAITS, waits & ~has_run)
        .when(F.col("kind") == CANCELLED, ~has_entry & ~has_run)
    )
    wrong = ~F.coalesce(is_right, F.lit(False))
    lines = (
        both.groupBy(F.coalesce("kind", F.lit(UNKNOWN)).alias("kind"))
        .agg(
            F.count("kind").alias("source"),
            F.coalesce(F.sum("entries"), F.lit(0)).alias("queue"),
            F.coalesce(F.sum("runs"), F.lit(0)).alias("history"),
            F.count_if(wrong).alias("wrong"),
            F.min(F.when(wrong, F.col("id"))).alias("example"),
        )
        .collect()
    )
    found = {line.kind: Line(**line.asDict()) for line in lines}
    return [
        found.get(kind, Line(kind, 0, 0, 0, 0, None)) for kind in (RUN, WAITS, CANCELLED, UNKNOWN)
    ]


def problems(
    news: News,
    first: Summary,
    second: Summary,
    forward: Mapping[str, int],
    lines: list[Line],
    unfinished: Mapping[str, int],
) -> Iterator[str]:
    """Return a sentence for each disagreement.

    Parameters
    ----------
    news : News
        The numbers of the source.
    first, second : Summary
        The results of `reconcile` before the news and after it.
    forward : Mapping[str, int]
        The writer's result for the day whose rows were moved forward.
    lines : list[Line]
        The final comparison.
    unfinished : Mapping[str, int]
        Number of ready, leased and dead tasks at the end.
    """
    yield from _differences("the first run", first, _summary(rows=news.flights, new=news.flights))
    there = news.flights - news.cancelled
    changed = _summary(
        rows=there,
        replaced=news.late,
        kept=there - news.late,
        orphans=news.cancelled,
        cancelled=news.cancelled,
    )
    yield from _differences("the second run", second, changed)
    run, waits = lines[0].source, lines[1].source
    for name, number in forward.items():
        if number != (run if name == "replaced" else 0):
            yield f"the day brought forward: {number} {name} of {run} rows"
    if run + waits != there:
        yield f"{run} flights to be run and {waits} that wait are not {there}"
    for line in lines:
        if line.wrong:
            yield f"{line.kind}: {line.wrong} tasks are not as they should be, as {line.example}"
    for state, number in unfinished.items():
        if number:
            yield f"{number} tasks are {state}"


def _summary(**numbers: int) -> dict[str, Any]:
    return {**asdict(Summary()), **numbers}


def _differences(what: str, summary: Summary, expected: Mapping[str, Any]) -> Iterator[str]:
    found = {**asdict(summary), "present": {k: n for k, n in summary.present.items() if n}}
    for name, value in expected.items():
        if found[name] != value:
            yield f"{what}: {name} is {found[name]}, and {value} by the source"
