"""The data source ``celery_delayq``: its readers and writers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from celery_delayq.spark.options import ReadOptions, WriteOptions

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class Source(DataSource):
    """Tables of the queue to read, and a writer that schedules tasks."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format(…)``."""
        return "celery_delayq"

    def schema(self) -> str:
        """Return the columns of the table that is read."""
        from celery_delayq.spark.read.tables import schema_of

        return schema_of(ReadOptions.of(self.options).table)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a table."""
        from celery_delayq.spark.read.readers import BatchReader

        return BatchReader(ReadOptions.of(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the stream reader of the history."""
        from celery_delayq.spark.read.readers import StreamReader

        return StreamReader(ReadOptions.of(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer that schedules a task for each row."""
        from celery_delayq.spark.write.writer import Writer

        return Writer(WriteOptions.of(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return the writer for a stream."""
        from celery_delayq.spark.write.writer import StreamWriter

        return StreamWriter(WriteOptions.of(self.options), schema, overwrite)
