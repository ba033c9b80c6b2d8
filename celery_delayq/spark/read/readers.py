"""The readers of the data source: any table in batches, and the history as a stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from pyarrow import RecordBatch
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.types import StructType

from celery_delayq.errors import ConfigError, InvalidCursor
from celery_delayq.model.history import check_range, place_of
from celery_delayq.model.names import NO_RENAMES
from celery_delayq.spark.access import Access, open_client, renames_of_access
from celery_delayq.spark.options import ReadOptions
from celery_delayq.spark.read.filters import RowFilter
from celery_delayq.spark.read.history import START_OFFSET, check_loss, last_runs
from celery_delayq.spark.read.partitions import plan, plan_runs
from celery_delayq.spark.read.table_rows import TableRows
from celery_delayq.spark.read.tables import columns_of

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # PySpark 4.1, where that trigger is one batch of all there is

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Placeholder for the class of later versions."""


#: The key in an offset for the part that is valid for all histories.
_SHARED_OFFSET = "id"


class _Reader:
    """The shared part of both readers. Executors get a copy without a connection.

    Parameters
    ----------
    schema : StructType
        The columns to read: all columns of the table, or the columns in
        ``spark.read.schema("id STRING, due TIMESTAMP")``.

    Raises
    ------
    ConfigError
        An option is wrong, or the table has no such column.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._columns = columns_of(options.table, schema)
        self._wanted = row_filter_of(options)

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Yield the rows of a part, on a new connection."""
        rows = TableRows(self._columns, self._wanted.conditions())
        return read_part(self._options.access, partition, rows, self._options.batchsize)


def row_filter_of(options: ReadOptions) -> RowFilter:
    """Return the filter that options describe, with the former names of their task in the app.

    Raises
    ------
    ConfigError
        A time cannot be read, the table has no column for an option, or the app cannot be imported.
    """
    renames = NO_RENAMES if options.task is None else renames_of_access(options.access)
    return RowFilter.of(options, renames)


def read_part(
    access: Access, partition: InputPartition, rows: TableRows, limit: int
) -> Iterator[RecordBatch]:
    """Yield the rows of a part, at most about *limit* at a time."""
    with open_client(access) as delayq:
        stores = delayq.session.stores
        for range_ in partition.value or ():  # for a table without parts, Spark passes None
            for page in range_.pages(stores, rows, limit):
                yield rows.batch(page)


class BatchReader(_Reader, DataSourceReader):
    """Reads one table in parallel parts."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        # By default the setting `spark.sql.python.filterPushdown.enabled` is off, and then Spark
        # refuses a reader with its own method `pushFilters`. A reader cannot read the setting.
        # Spark compares `__func__` of the method, so ours has Spark's function there.
        push: Any = partial(self.push)
        push.__func__ = DataSourceReader.pushFilters
        self.pushFilters = push  # type: ignore[method-assign]

    def push(self, filters: Iterable[Filter]) -> list[Filter]:
        """Apply filters; return the unsupported filters, which Spark applies."""
        unsupported = []
        for each in filters:
            narrowed = self._wanted.narrowed(each)
            if narrowed is None:
                unsupported.append(each)
            else:
                self._wanted = narrowed
        return unsupported

    def partitions(self) -> list[InputPartition]:
        """Return the parts. Only their bounds are read."""
        options = self._options
        with open_client(options.access) as delayq:
            stores = delayq.session.stores
            return plan(stores, self._wanted, options.partitions, options.batchsize)


class StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the history as a stream.

    An offset has the id of the last run that was read: ``{"id": …}``. On a Redis Cluster it has one
    id for each hash tag, because each hash tag has its own history and clock. A history only grows
    at its end, so each run is read once.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        if options.table != "history":
            raise ConfigError(
                f"table={options.table!r} cannot be read as a stream, only history can; "
                "use spark.read instead of spark.readStream"
            )
        try:
            check_range(options.after or START_OFFSET, None)
        except InvalidCursor as exc:
            raise ConfigError(f"option {exc}") from exc
        super().__init__(options, schema)
        #: The last runs for the trigger `availableNow`.
        self._target: dict[str, str] | None = None

    def initialOffset(self) -> dict[str, str]:  # noqa: N802
        """Return the offset of all histories at which a new stream begins."""
        return {_SHARED_OFFSET: self._options.after or START_OFFSET}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, str]:  # noqa: ARG002, N802
        """Return the current offset of the last run."""
        reached = start or self.initialOffset()
        newest = self._target or self._last_offsets()
        return {
            name: max(_of(reached, name), offset, key=place_of) for name, offset in newest.items()
        }

    def reportLatestOffset(self) -> dict[str, str] | None:  # noqa: N802
        """Return the current offset of the last run, for the progress of the query."""
        newest = self._last_offsets()
        return newest if {*newest.values()} != {START_OFFSET} else None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the stream: read no run after the current last run."""
        self._target = self._last_offsets()

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> list[InputPartition]:
        """Return the parts between two offsets."""
        options = self._options
        with open_client(options.access) as delayq:
            stores = delayq.session.stores
            histories = stores.histories
            after = {name: _of(start, name or _SHARED_OFFSET) for name in histories}
            upto = {name: _of(end, name or _SHARED_OFFSET) for name in histories}
            for name, history in histories.items():
                if after[name] != upto[name]:
                    check_loss(history, after[name], options.onloss)
            parts, least = options.partitions, options.batchsize
            return plan_runs(stores, after, upto, parts, least, options.onloss)

    def _last_offsets(self) -> dict[str, str]:
        with open_client(self._options.access) as delayq:
            newest = last_runs(delayq.session.stores)
        return {name or _SHARED_OFFSET: offset for name, offset in newest.items()}


def _of(offset: Mapping[str, str], name: str) -> str:
    """Return the part of an offset for a history."""
    return offset.get(name) or offset.get(_SHARED_OFFSET, START_OFFSET)
