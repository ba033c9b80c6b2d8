"""Rate at which Spark schedules rows, beside a plain Python loop, and memory of its driver."""

from __future__ import annotations

import json
import resource
import tempfile
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from uuid import uuid4

from ..bench import Bench, Station
from ..model import Better, Figure, Row, measurement, ratio_at_least, ratio_at_most
from ..spark import rate, session

#: Rows, and rows that the loop sends in one round trip.
ROWS, QUICK_ROWS, PIPELINE = 500_000, 50_000, 500

#: Rows of the job that measures the driver, as a multiple of one fifth of the rows above.
TIMES = 20

#: Dues, relative to the first one.
DAY = 86_400

WRITE = Row(
    "spark-write",
    "Spark schedules {} rows; stock: a pipelined loop in Python",
    "rows/s",
    Better.HIGHER,
    ratio_at_least(1.3),
)
AGAIN = Row(
    "spark-write-again",
    "Spark schedules the same rows again; stock: the first time",
    "rows/s",
    Better.HIGHER,
    ratio_at_least(1.5),
)
MEMORY = Row(
    "spark-driver",
    "memory of Spark's driver after {} rows; stock: after {}",
    "MB",
    Better.LOWER,
    ratio_at_most(1.1),
)


@measurement("spark-write", order=98)
def spark_write(bench: Bench) -> Iterator[Figure]:
    """Scheduling rows by Spark, twice, beside a loop in Python that makes the same messages."""
    number = ROWS if bench.size.rounds > 3 else QUICK_ROWS
    rounds = max(1, bench.size.rounds // 3)
    loops: list[float] = []
    firsts: list[float] = []
    agains: list[float] = []
    with bench.station(bench.ours) as station, _rows(number) as (spark, rows):
        plain = [row.asDict() for row in rows.limit(10_000).collect()]
        _write(station, spark.range(1_000).selectExpr(*_COLUMNS))  # warms up
        for turn in range(rounds):
            bench.note(f"{WRITE.title}: round {turn + 1} of {rounds}")
            for work in (_loop, _spark)[:: -1 if turn % 2 else 1]:
                station.client.flushall()
                if work is _loop:
                    loops.append(rate(number, lambda: _loop(station, plain, number)))
                else:
                    firsts.append(rate(number, lambda: _spark(station, rows)))
                    agains.append(rate(number, lambda: _spark(station, rows)))
    yield WRITE.titled(f"{number:,}").figure(loops, firsts)
    yield AGAIN.figure(firsts, agains)


@measurement("spark-driver", order=98)
def spark_driver(bench: Bench) -> Iterator[Figure]:
    """What the driver keeps of a job, by the number of its rows."""
    least = (ROWS if bench.size.rounds > 3 else QUICK_ROWS) // 5
    kept = []
    with bench.station(bench.ours) as station, session() as spark:
        for number in (1_000, least, least * TIMES):
            bench.note(f"{MEMORY.title}: {number:,} rows")
            # All rows have the same few ids, so that Redis does not fill up.
            columns = [column.replace("(id", "(id % 1000") for column in _COLUMNS]
            _write(station, spark.range(0, number, 1, 8).selectExpr(*columns))
            kept.append(_kept(spark))
    yield MEMORY.titled(f"{least * TIMES:,}", f"{least:,}").figure([kept[1]], [kept[2]])


_COLUMNS = (
    "concat('UA', (id)) AS flight",
    "'EWR' AS origin",
    "'IAH' AS dest",
    "id % 97 AS minutes",
    "id * 0.5D AS delay",
    f"timestamp_seconds({int(time.time()) // DAY * DAY + 2 * DAY} + (id) % {DAY}) AS remind_at",
)


@contextmanager
def _rows(number: int) -> Iterator[tuple[Any, Any]]:
    """Yield a session, and rows that it reads from Parquet, as a pipeline does."""
    with session() as spark, tempfile.TemporaryDirectory(prefix="delayq-bench-") as folder:
        path = str(Path(folder, "rows"))
        spark.range(0, number, 1, 4).selectExpr(*_COLUMNS).write.parquet(path)
        yield spark, spark.read.parquet(path)


def _write(station: Station, rows: Any) -> None:
    rows.write.format("celery_delayq").mode("append").options(
        url=station.settings.broker, task="mail.remind", idcolumn="flight", etacolumn="remind_at"
    ).save()


def _spark(station: Station, rows: Any) -> int:
    _write(station, rows)
    return int(station.client.zcard("{celery}:due"))


def _loop(station: Station, rows: list[dict[str, Any]], number: int) -> int:
    """Schedule as people do without Spark: a message that a worker can run, and a sorted set."""
    client = station.client
    pipe = client.pipeline(transaction=False)
    for place in range(number):
        row = dict(rows[place % len(rows)])
        id = f"mail.remind:{row.pop('flight')}-{place}"
        eta = row.pop("remind_at").replace(tzinfo=timezone.utc)
        pipe.hset("plain:entries", id, _message(id, eta, row))
        pipe.zadd("plain:due", {id: eta.timestamp() * 1000})
        if place % PIPELINE == PIPELINE - 1:
            pipe.execute()
    pipe.execute()
    return int(client.zcard("plain:due"))


def _message(id: str, eta: datetime, kwargs: dict[str, Any]) -> str:
    embed = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    body = b64encode(json.dumps([[], kwargs, embed]).encode()).decode()
    headers = {
        "lang": "py",
        "task": "mail.remind",
        "id": id,
        "eta": eta.isoformat(),
        "expires": None,
        "group": None,
        "retries": 0,
        "timelimit": [None, None],
        "root_id": id,
        "parent_id": None,
        "argsrepr": "()",
        "kwargsrepr": repr(kwargs),
        "origin": "gen1@host",
    }
    properties = {
        "correlation_id": id,
        "delivery_mode": 2,
        "delivery_info": {"exchange": "", "routing_key": "celery"},
        "priority": 0,
        "body_encoding": "base64",
        "delivery_tag": str(uuid4()),
    }
    return json.dumps(
        {
            "body": body,
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": headers,
            "properties": properties,
        }
    )


def _kept(spark: Any) -> float:
    """Memory of the driver in MB: used by Java, and the peak of Python."""
    runtime = spark.sparkContext._jvm.java.lang.Runtime.getRuntime()
    least = float("inf")
    for _ in range(5):  # weak and soft references go only after some collections
        runtime.gc()
        least = min(least, runtime.totalMemory() - runtime.freeMemory())
    python = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return float(least + python) / 1e6
