"""How fast Spark reads the schedule, beside a plain Python loop over ``DelayQ.list``."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

from ..bench import Bench
from ..model import BenchError, Better, Figure, Row, measurement, ratio_at_least

#: Entries that are read.
ENTRIES = 100_000

READ = Row(
    "spark-read",
    "Spark reads 100,000 entries, local[2]; stock: a loop over DelayQ.list",
    "rows/s",
    Better.HIGHER,
)
SCHEDULED = Row(
    "spark-read-beside-many",
    "the same; stock: schedule_many of these entries",
    "rows/s",
    Better.HIGHER,
    ratio_at_least(1.6),
)


@measurement("spark-read", order=99)
def spark_read(bench: Bench) -> Iterator[Figure]:
    """Reading the schedule into Spark, beside a loop in Python and beside scheduling it."""
    try:
        import pyspark  # noqa: F401
    except ImportError as error:
        raise BenchError("it needs PySpark: pip install celery-delayq[spark]") from error
    from celery import Celery

    from celery_delayq import DelayQ

    reads: list[float] = []
    few: list[float] = []
    loops: list[float] = []
    with bench.station(bench.ours) as station, _session() as spark:
        app = Celery("bench", broker=station.settings.broker, set_as_current=False)
        delayq = DelayQ(app)
        bench.note(f"{READ.title}: scheduling")
        made = _rate(lambda: _fill(app, delayq))
        table = spark.read.format("celery_delayq").options(url=station.settings.broker)
        for number in range(-1, min(bench.size.rounds, 5)):  # round -1 warms up
            bench.note(f"{READ.title}: round {number + 1}")
            rates = (
                _rate(lambda: _spark_reads(table)),
                _rate(lambda: _spark_reads(table.schema("id STRING, task STRING, due TIMESTAMP"))),
                _rate(lambda: _python_reads(delayq)),
            )
            if number >= 0:
                for seen, rate in zip((reads, few, loops), rates, strict=True):
                    seen.append(rate)
        delayq.close()
    yield READ.figure(loops, reads, {"three_columns": few})
    yield SCHEDULED.figure([made] * len(reads), reads)


@contextmanager
def _session() -> Iterator[Any]:
    """A session of Spark on two cores."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    import celery_delayq.spark

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        celery_delayq.spark.register(spark)
        yield spark
    finally:
        spark.stop()


def _rate(work: Callable[[], int]) -> float:
    began = time.perf_counter()
    number = work()
    seconds = time.perf_counter() - began
    if number != ENTRIES:
        raise BenchError(f"{number} of {ENTRIES} entries were met")
    return number / seconds


def _fill(app: Any, delayq: Any) -> int:
    remind = app.task(name="mail.remind", shared=False)(_remind)
    first = datetime.now(timezone.utc) + timedelta(days=1)
    items = (
        {"kwargs": {"flight": n, "text": f"gate {n % 40}"}, "eta": first + timedelta(seconds=n)}
        for n in range(ENTRIES)
    )
    report = delayq.schedule_many(items, task=remind)
    return int(report.counts.get("scheduled", 0))


def _remind(flight: int, text: str) -> None:
    """Stand for a task."""


def _spark_reads(table: Any) -> int:
    # Every column of every row, which a count would not ask for.
    from pyspark.sql.functions import count, lit

    frame = table.load()
    seen = frame.select(count(lit(1)), *(count(name) for name in frame.columns)).first()
    return int(seen[0])


def _python_reads(delayq: Any) -> int:
    number, cursor = 0, None
    while True:
        page = delayq.list(limit=1000, cursor=cursor)
        number += sum(1 for entry in page if entry.kwargs)
        cursor = page.cursor
        if cursor is None:
            return number
