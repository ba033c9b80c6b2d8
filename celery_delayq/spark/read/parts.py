"""The unit of work of one Spark task that reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from pyspark.sql.datasource import InputPartition

from celery_delayq.spark.read.table_rows import Page, TableRows
from celery_delayq.store.schedule import Store


class ReadRange(Protocol):
    """A contiguous range of a table."""

    def pages(self, store: Store, rows: TableRows, limit: int) -> Iterator[Page]:
        """Yield its rows, at most about *limit* at a time."""


ReadRanges = Iterable[Sequence[ReadRange]]


class ReadPart(InputPartition):
    """The ranges that one Spark task reads; an executor gets a copy."""

    def __init__(self, ranges: Sequence[ReadRange]) -> None:
        super().__init__(tuple(ranges))

    @property
    def ranges(self) -> tuple[ReadRange, ...]:
        """The ranges, to read in this order."""
        ranges: tuple[ReadRange, ...] = self.value
        return ranges
