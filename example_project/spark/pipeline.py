"""Into and out of the queue: the calls of a pipeline."""

from __future__ import annotations

from typing import Literal

from pyspark.sql import DataFrame, SparkSession

from celery_delayq.spark.reconcile import (
    Options,
    Summary,
    reconcile,
)
from celery_delayq.spark.write.writer import write

TASK = "flights.remind"
#: How driver and executors find the queue: by the settings of the app.
ACCESS = {"app": "example_project.spark.app"}


def bring_up_to_date(
    spark: SparkSession, rows: DataFrame, orphans: Literal["report", "cancel"] = "report"
) -> Summary:
    """Schedule missing rows, move changed ones, and cancel tasks without a row."""
    options = Options(task=TASK, key="flight", eta="remind_at", orphans=orphans, access=ACCESS)
    return reconcile(spark, rows, options)


def replace(rows: DataFrame) -> dict[str, int]:
    """Write rows in place of waiting tasks of the same flights; return the number by outcome."""
    columns = {"idcolumn": "flight", "etacolumn": "remind_at"}
    sums = write(rows, {"task": TASK, **columns, "onconflict": "replace", **ACCESS})
    return {name: int(sums[name]) for name in ("new", "kept", "replaced", "refused")}


def read(spark: SparkSession, table: str, columns: str) -> DataFrame:
    """Read some columns of a table of the queue."""
    source = spark.read.format("celery_delayq").schema(columns)
    return source.options(table=table, task=TASK, **ACCESS).load()
