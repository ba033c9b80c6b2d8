"""The data source ``celery_delayq``: which class does what."""

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
    """Scheduled tasks, and what is known of those that were."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format(…)``."""
        return "celery_delayq"

    def schema(self) -> str:
        """Return the columns of the table that is read."""
        from celery_delayq.spark.read.tables import schema_of

        return schema_of(ReadOptions.of(self.options).table)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads a table."""
        from celery_delayq.spark.read.batch import BatchReader

        return BatchReader(ReadOptions.of(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return what reads history as a stream."""
        from celery_delayq.spark.read.stream import StreamReader

        return StreamReader(ReadOptions.of(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return what schedules a task for each row."""
        from celery_delayq.spark.write.writer import Writer

        return Writer(WriteOptions.of(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return the same for a stream."""
        from celery_delayq.spark.write.writer import StreamWriter

        return StreamWriter(WriteOptions.of(self.options), schema, overwrite)
