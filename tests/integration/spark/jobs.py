"""Functions that tests run in a `Driver` and on its executors."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from redis import Redis

from celery_delayq.spark.reconcile import Options, Summary, read_jdbc, reconcile
from celery_delayq.testing import wait_until
from tests.integration.spark.driver import run_stream
from tests.integration.spark.flights import COLUMNS, OPTIONS
from tests.support import TIMEOUT

Given = Mapping[str, str]

PARTS, PART_ROWS = 8, 2500

#: Which parts fail once, and which one has a slow attempt.
FAILING, SLOW = (1, 4), 2

#: Rows after which that happens.
_LATER = 1000


@dataclass(frozen=True)
class Faults:
    """Faults of the first attempts of some parts, after some of their rows went to Redis.

    Two raise an error. A slow one waits until a second attempt of Spark has refused rows, so both
    run side by side.
    """

    port: int
    refused: str
    folder: str

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        part, attempt = context.partitionId(), context.attemptNumber()
        failed = Path(self.folder, f"failed-{part}")
        if part in FAILING and attempt > 0:  # must not end before the first one has failed
            wait_until(failed.exists, TIMEOUT, "the first attempt to fail")
        passed, calm = 0, attempt > 0 or part not in (*FAILING, SLOW)
        for batch in batches:
            yield batch
            passed += batch.num_rows
            if calm or passed < _LATER:
                continue
            calm = True
            self._wait_written(f"UA{part * PART_ROWS}")
            if part == SLOW:
                wait_until(lambda: self._attempts() >= 2, TIMEOUT, "a second attempt")
            else:
                failed.touch()
                raise RuntimeError(f"part {part} fails, as told")

    def _wait_written(self, flight: str) -> None:
        with Redis(port=self.port, password=os.environ["DELAYQ_PASSWORD"]) as client:
            wait_until(
                lambda: client.hexists("{celery}:entries", f"mail.remind:{flight}"),
                TIMEOUT,
                f"{flight} in Redis",
            )

    def _attempts(self) -> int:
        return len([*Path(self.refused).glob(f"_pending-*/part-{SLOW:05}-*")])


def wait_idle(spark: Any) -> None:
    """Wait until no task of Spark runs.

    Tasks of a job that has failed or was cancelled go on, and so do second attempts.
    """
    tracker = spark.sparkContext._jsc.sc().statusTracker()

    def running() -> int:
        return sum(each.numRunningTasks() for each in tracker.getExecutorInfos())

    wait_until(lambda: not running(), TIMEOUT, "Spark's tasks to end")


def write_with_faults(spark: Any, port: int, folder: str, options: Given) -> None:
    """Write many rows while attempts fail, and one is slow."""
    rows = spark.range(PARTS * PART_ROWS, numPartitions=PARTS).selectExpr(*COLUMNS)
    write(spark, rows.mapInArrow(Faults(port, options["refused"], folder), rows.schema), options)


def write_range(spark: Any, options: Given, number: int, parts: int = 4) -> None:
    """Write rows; without the option `refused` only good ones."""
    rows = spark.range(number, numPartitions=parts)
    if "refused" not in options:
        rows = rows.where("id % 500 NOT IN (7, 13)")
    write(spark, rows.selectExpr(*COLUMNS), options)


def write(spark: Any, rows: Any, options: Given) -> None:
    """Write rows of `COLUMNS`."""
    rows.write.format("celery_delayq").mode("append").options(**{**OPTIONS, **options}).save()


def read(spark: Any, options: Given) -> list[str]:
    """Return ids."""
    return [row.id for row in _ids(spark, options).collect()]


def read_on_all(spark: Any, options: Given, folder: str, executors: int) -> list[str]:
    """Return ids; each executor has read some of them."""
    rows = _ids(spark, options).rdd.mapPartitions(Together(folder, executors))
    return [*rows.collect()]


def _ids(spark: Any, options: Given) -> Any:
    return spark.read.schema("id STRING").format("celery_delayq").options(**options).load()


@dataclass(frozen=True)
class Together:
    """Ends no part before each executor has read one.

    Otherwise one may read all while another starts its Python.
    """

    folder: str
    executors: int

    def __call__(self, rows: Iterator[Any]) -> Iterator[str]:
        yield from [row.id for row in rows]
        Path(self.folder, Path(os.environ["SPARK_EXECUTOR_DIRS"]).name).touch()
        wait_until(self._all, TIMEOUT, lambda: f"{self.executors} to read: {self._seen()}")

    def _all(self) -> bool:
        return len(self._seen()) == self.executors

    def _seen(self) -> list[str]:
        return [path.name for path in Path(self.folder).iterdir()]


def explain(spark: Any, options: Given, number: int) -> str:
    """Return all plans of reading the queue and a database."""
    frames = (spark.read.format("celery_delayq").options(**options).load(), values(spark, number))
    plans = [frame._jdf.queryExecution() for frame in frames]
    how = spark._jvm.org.apache.spark.sql.execution.ExplainMode.fromString("extended")
    return "".join(f"{each.explainString(how)}{each.toString()}" for each in plans)


def stream(spark: Any, options: Given, folder: str) -> None:
    """Write new runs of the history to Parquet files."""
    rows = spark.readStream.format("celery_delayq").options(table="history", **options).load()
    writer = (
        rows.writeStream.format("parquet")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
    )
    run_stream(lambda: writer.start(f"{folder}/runs"))


def follow(spark: Any, url: str, checkpoint: str, more: Given | None = None) -> None:
    """Schedule a task for each new run of the history, up to the last one by now."""
    runs = (
        spark.readStream.format("celery_delayq")
        .options(url=url, table="history", batchsize="50")
        .load()
        .selectExpr("`offset`", "ended + INTERVAL 100 YEARS AS at", "id AS run")
    )
    given = {"task": "audit.check", "idcolumn": "offset", "etacolumn": "at", "batchsize": "50"}
    writer = (
        runs.writeStream.format("celery_delayq")
        .options(url=url, **{**given, **(more or {})})
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
    )
    run_stream(writer.start)


def values(spark: Any, number: int) -> Any:
    """Return made-up rows of a database, which each executor has in its memory."""
    made_up = ", ".join(
        f"(CAST('UA{n}' AS VARCHAR(9)), TIMESTAMP('2031-01-01 00:00:00'), {n})"
        for n in range(number)
    )
    return read_jdbc(
        spark,
        "jdbc:derby:memory:shop;create=true",
        user="reader",
        query=f"SELECT * FROM (VALUES {made_up}) AS reminders (flight, remind_at, pax)",
    ).withColumnsRenamed({"FLIGHT": "flight", "REMIND_AT": "remind_at", "PAX": "pax"})


def reconcile_values(spark: Any, options: Given, number: int) -> Summary:
    """Reconcile rows of a database."""
    how = Options(task="mail.remind", key="flight", eta="remind_at", access=options)
    return reconcile(spark, values(spark, number), how)


def parquet_ids(spark: Any, folder: str) -> list[str]:
    """Return ids in files that a stream has written and committed."""
    return [row.id for row in spark.read.parquet(folder).select("id").collect()]


def ui(spark: Any) -> str:
    """Return the URL of the web pages."""
    return str(spark.sparkContext.uiWebUrl)


def ship(spark: Any, path: str) -> None:
    """Ship a module to executors, as ``--py-files`` does."""
    spark.sparkContext.addPyFile(path)
