"""What one task of Spark reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from pyspark.sql.datasource import InputPartition

from celery_delayq.spark.read.table_rows import Page, TableRows
from celery_delayq.store.schedule import Store


class ReadRange(Protocol):
    """What one part reads without a gap."""

    def pages(self, store: Store, rows: TableRows, limit: int) -> Iterator[Page]:
        """Yield what is there, at most about so many rows at a time."""


ReadRanges = Iterable[Sequence[ReadRange]]


class ReadPart(InputPartition):
    """What one task of Spark reads; it goes to an executor."""

    def __init__(self, ranges: Sequence[ReadRange]) -> None:
        super().__init__(tuple(ranges))

    @property
    def ranges(self) -> tuple[ReadRange, ...]:
        """One after the other."""
        ranges: tuple[ReadRange, ...] = self.value
        return ranges
