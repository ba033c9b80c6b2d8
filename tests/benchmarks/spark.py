"""A Spark session for measurements, and the measurement of a rate."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .model import BenchError


@contextmanager
def session() -> Iterator[Any]:
    """Yield a session of Spark on two cores, which knows the data source."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise BenchError("it needs PySpark: pip install celery-delayq[spark]") from error
    import celery_delayq.spark

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    options = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in options.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        celery_delayq.spark.register(spark)
        yield spark
    finally:
        spark.stop()


def rate(expected: int, work: Callable[[], int]) -> float:
    """Return rows a second; ``work`` must return the expected number."""
    began = time.perf_counter()
    number = work()
    seconds = time.perf_counter() - began
    if number != expected:
        raise BenchError(f"{number} instead of {expected}")
    return number / seconds
