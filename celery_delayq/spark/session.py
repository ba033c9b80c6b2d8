"""What jobs ask of a session of Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Connections of one kind that a job opens side by side, however many executors there are.
MOST_CONNECTIONS = 8


@contextmanager
def described(spark: SparkSession, what: str) -> Iterator[None]:
    """Have Spark's pages say what its jobs are for."""
    context = spark.sparkContext
    before = context.getLocalProperty("spark.job.description")
    context.setJobDescription(what)
    try:
        yield
    finally:
        context.setJobDescription(before)  # type: ignore[arg-type]  # None: it had none


@contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """Have a setting of SQL for what is planned meanwhile."""
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, before)


@contextmanager
def interrupts() -> Iterator[None]:
    """Have Ctrl-C raise `KeyboardInterrupt` in calls of Java, too.

    There py4j raises an error of its own instead, when it fails to end the call.
    """
    try:
        yield
    except Exception as exc:
        before = exc.__context__
        while before is not None and not isinstance(before, KeyboardInterrupt):
            before = before.__context__
        if before is not None:
            raise KeyboardInterrupt from exc
        raise
