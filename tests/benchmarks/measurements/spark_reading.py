"""Rate at which Spark reads the schedule, beside a plain Python loop over ``DelayQ.list``."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

from ..bench import Bench
from ..model import Better, Figure, Row, measurement, ratio_at_least
from ..spark import rate, session

#: Number of entries.
ENTRIES = 100_000

READ = Row(
    "spark-read",
    "Spark reads 100,000 entries, all columns; stock: a loop over `DelayQ.list`",
    "rows/s",
    Better.HIGHER,
)
SCHEDULED = Row(
    "spark-read-beside-many",
    "Spark reads 100,000 entries; stock: `schedule_many` of them",
    "rows/s",
    Better.HIGHER,
    ratio_at_least(1.6),
)


@measurement("spark-read", order=99)
def spark_read(bench: Bench) -> Iterator[Figure]:
    """Reading the schedule into Spark, beside a loop in Python and beside scheduling it."""
    reads: list[float] = []
    few: list[float] = []
    loops: list[float] = []
    with (
        bench.station(bench.ours) as station,
        station.delayq() as delayq,
        session() as spark,
    ):
        bench.note(f"{READ.title}: scheduling")
        made = rate(ENTRIES, lambda: _fill(delayq))
        table = spark.read.format("celery_delayq").options(url=station.settings.broker)
        columns = "id STRING, task STRING, due TIMESTAMP"
        for number in range(-1, min(bench.size.rounds, 5)):  # round -1 warms up
            bench.note(f"{READ.title}: round {number + 1}")
            rates = (
                rate(ENTRIES, lambda: _spark_reads(table)),
                rate(ENTRIES, lambda: _spark_reads(table.schema(columns))),
                rate(ENTRIES, lambda: _python_reads(delayq)),
            )
            if number >= 0:
                for seen, found in zip((reads, few, loops), rates, strict=True):
                    seen.append(found)
    yield READ.figure(loops, reads, {"three_columns": few})
    yield SCHEDULED.figure([made] * len(reads), reads)


def _fill(delayq: Any) -> int:
    remind = delayq.app.task(name="mail.remind", shared=False)(_remind)
    first = datetime.now(timezone.utc) + timedelta(days=1)
    items = (
        {"kwargs": {"flight": n, "text": f"gate {n % 40}"}, "eta": first + timedelta(seconds=n)}
        for n in range(ENTRIES)
    )
    report = delayq.schedule_many(items, task=remind)
    return int(report.counts.get("scheduled", 0))


def _remind(flight: int, text: str) -> None:
    """The task of the entries; never runs."""


def _spark_reads(table: Any) -> int:
    # All columns of every row; a count would not read them.
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
