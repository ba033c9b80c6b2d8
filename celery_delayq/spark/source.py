"""The data source ``celery_delayq``: its readers and writers."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from celery_delayq.spark.options import ReadOptions, WriteOptions
from celery_delayq.spark.read.readers import BatchReader, StreamReader
from celery_delayq.spark.read.tables import TABLE_COLUMNS, schema_of
from celery_delayq.spark.write.writer import StreamWriter, Writer


class Source(DataSource):
    """Tables of the queue to read, and a writer that schedules tasks."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format(…)``."""
        return "celery_delayq"

    def schema(self) -> str:
        """Return the columns of the table to read."""
        return schema_of(TABLE_COLUMNS[ReadOptions.of(self.options).table])

    def reader(self, schema: StructType) -> BatchReader:
        """Return the reader of a table."""
        return BatchReader(ReadOptions.of(self.options), schema)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
        """Return the stream reader of the history."""
        return StreamReader(ReadOptions.of(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> Writer:
        """Return the writer that schedules a task for each row."""
        return Writer(WriteOptions.of(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        """Return the writer for a stream."""
        return StreamWriter(WriteOptions.of(self.options), schema, overwrite)
