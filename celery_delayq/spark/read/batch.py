"""The batch reader of the data source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from celery_delayq.spark.access import opened
from celery_delayq.spark.options import ReadOptions
from celery_delayq.spark.read.filters import Wanted
from celery_delayq.spark.read.partitions import plan
from celery_delayq.spark.read.parts import ReadPart
from celery_delayq.spark.read.table_rows import TableRows
from celery_delayq.spark.read.tables import columns_of

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType


class BatchReader(DataSourceReader):
    """Reads one table in parallel parts.

    Executors get a copy: it has options and no connection.

    Parameters
    ----------
    schema : StructType
        The columns to read: all of the table, or those of
        ``spark.read.schema("id STRING, due TIMESTAMP")``.

    Raises
    ------
    ConfigError
        An option is wrong, or the table has no such column.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._names = columns_of(options.table, schema)
        self._wanted = Wanted.of(options)
        self.pushFilters = Push(self)  # type: ignore[method-assign]

    def push(self, filters: Iterable[Filter]) -> Iterator[Filter]:
        """Apply filters, and yield those that are left to Spark."""
        for each in filters:
            narrowed = self._wanted.narrowed(each)
            if narrowed is None:
                yield each
            else:
                self._wanted = narrowed

    def partitions(self) -> list[ReadPart]:
        """Return the parts; reads only their bounds."""
        options = self._options
        with opened(options.access) as delayq:
            return plan(delayq.store, self._wanted, options.partitions, options.batchsize)

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Yield the rows of a part; opens a connection of its own."""
        rows = TableRows(self._options.table, self._names, self._wanted.tests())
        return read(self._options, rows, partition)


def read(options: ReadOptions, rows: TableRows, partition: InputPartition) -> Iterator[RecordBatch]:
    """Yield the rows of a part."""
    if not isinstance(partition, ReadPart):  # Spark's own, if a table has no parts
        return
    with opened(options.access) as delayq:
        for range_ in partition.ranges:
            for page in range_.pages(delayq.store, rows, options.batchsize):
                yield rows.batch(page)


class Push:
    """The method ``pushFilters`` of a reader, whether Spark pushes filters or not.

    Spark refuses a reader that has the method while ``spark.sql.python.filterPushdown.enabled`` is
    off, the default, and a reader does not know that setting. Spark compares ``__func__`` of the
    method, so this object shows the one of Spark's base class.
    """

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader
        self.__func__: Any = DataSourceReader.pushFilters

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        """Return the filters that are left to Spark."""
        return [*self._reader.push(filters)]
