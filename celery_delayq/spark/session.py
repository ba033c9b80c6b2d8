"""Context managers for a Spark session: job descriptions, settings and Ctrl-C."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def job_description(spark: SparkSession, what: str) -> Iterator[None]:
    """Set the description of Spark jobs, which Spark's web pages show, for the block."""
    context = spark.sparkContext
    before = context.getLocalProperty("spark.job.description")
    context.setJobDescription(what)
    try:
        yield
    finally:
        context.setJobDescription(before)  # type: ignore[arg-type]  # None: no description


@contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """Change a SQL setting for the block."""
    before = str(spark.conf.get(name))
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, before)


@contextmanager
def interrupts() -> Iterator[None]:
    """Raise `KeyboardInterrupt` for Ctrl-C during a call of Java.

    Without this context, py4j logs a traceback and raises another error.
    """
    root = logging.getLogger()
    root.addFilter(_keep_record)
    try:
        yield
    except Exception as exc:
        if _was_interrupted(exc):
            raise KeyboardInterrupt from exc
        raise
    finally:
        root.removeFilter(_keep_record)


def _keep_record(record: logging.LogRecord) -> bool:
    return record.exc_info is None or not _was_interrupted(record.exc_info[1])


def _was_interrupted(exc: BaseException | None) -> bool:
    """Return whether an error is a KeyboardInterrupt, or was raised while one was handled."""
    while exc is not None and not isinstance(exc, KeyboardInterrupt):
        exc = exc.__context__
    return exc is not None
