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
from celery_delayq.spark.access import Access, opened
from celery_delayq.spark.options import ReadOptions
from celery_delayq.spark.read.filters import Wanted
from celery_delayq.spark.read.history import START_OFFSET, check_loss, last_runs, plan_runs
from celery_delayq.spark.read.partitions import plan
from celery_delayq.spark.read.table_rows import TableRows
from celery_delayq.spark.read.tables import columns_of

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # PySpark 4.1, where that trigger is one batch of all there is

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Placeholder for the class of later versions."""


#: The name of the one part of an offset that holds for all histories.
_SHARED_OFFSET = "id"


class _Reader:
    """The part of both readers that executors need: they get a copy without a connection.

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
        self._columns = columns_of(options.table, schema)
        self._wanted = Wanted.of(options)

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Yield the rows of a part; opens a connection of its own."""
        rows = TableRows(self._columns, self._wanted.tests())
        return read_part(self._options.access, partition, rows, self._options.batchsize)


def read_part(
    access: Access, partition: InputPartition, rows: TableRows, limit: int
) -> Iterator[RecordBatch]:
    """Yield the rows of a part, at most about *limit* at a time."""
    with opened(access) as delayq:
        stores = delayq.session.stores
        for range_ in partition.value or ():  # None of Spark's own, if a table has no parts
            for page in range_.pages(stores, rows, limit):
                yield rows.batch(page)


class BatchReader(_Reader, DataSourceReader):
    """Reads one table in parallel parts."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        # Spark refuses a reader that has the method `pushFilters` while the setting
        # `spark.sql.python.filterPushdown.enabled` is off, the default, and a reader does not know
        # that setting. Spark compares `__func__` of the method, so this one shows Spark's own.
        push: Any = partial(self.push)
        push.__func__ = DataSourceReader.pushFilters
        self.pushFilters = push  # type: ignore[method-assign]

    def push(self, filters: Iterable[Filter]) -> list[Filter]:
        """Apply filters, and return those that are left to Spark."""
        left = []
        for each in filters:
            narrowed = self._wanted.narrowed(each)
            if narrowed is None:
                left.append(each)
            else:
                self._wanted = narrowed
        return left

    def partitions(self) -> list[InputPartition]:
        """Return the parts; reads only their bounds."""
        options = self._options
        with opened(options.access) as delayq:
            stores = delayq.session.stores
            return plan(stores, self._wanted, options.partitions, options.batchsize)


class StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the history as a stream.

    The offset is the last run that was read: ``{"id": …}``, or on a Redis Cluster one for each hash
    tag, since each has a history and a clock of its own. A history only grows at its end, so each
    run is read once, whatever its due time.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        if options.table != "history":
            raise ConfigError(
                f"table={options.table!r} cannot be read as a stream, history can; "
                "use spark.read in place of spark.readStream"
            )
        try:
            check_range(options.after or START_OFFSET, None)
        except InvalidCursor as exc:
            raise ConfigError(f"option {exc}") from exc
        super().__init__(options, schema)
        #: The last runs for the trigger `availableNow`.
        self._target: dict[str, str] | None = None

    def initialOffset(self) -> dict[str, str]:  # noqa: N802
        """Return the offset at which a new stream begins, that of all histories."""
        return {_SHARED_OFFSET: self._options.after or START_OFFSET}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, str]:  # noqa: ARG002, N802
        """Return the offset of the last run now."""
        reached = start or self.initialOffset()
        last = self._target or self._last()
        return {
            name: max(_of(reached, name), offset, key=place_of) for name, offset in last.items()
        }

    def reportLatestOffset(self) -> dict[str, str] | None:  # noqa: N802
        """Return the offset of the last run now, for the progress of the query."""
        last = self._last()
        return last if {*last.values()} != {START_OFFSET} else None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read no runs that are later than the last one now."""
        self._target = self._last()

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> list[InputPartition]:
        """Return the parts between two offsets."""
        options = self._options
        with opened(options.access) as delayq:
            stores = delayq.session.stores
            histories = stores.histories
            after = {name: _of(start, name or _SHARED_OFFSET) for name in histories}
            upto = {name: _of(end, name or _SHARED_OFFSET) for name in histories}
            for name, history in histories.items():
                if after[name] != upto[name]:
                    check_loss(history, after[name], options.onloss)
            parts, least = options.partitions, options.batchsize
            return plan_runs(stores, after, upto, parts, least, options.onloss)

    def _last(self) -> dict[str, str]:
        with opened(self._options.access) as delayq:
            last = last_runs(delayq.session.stores)
        return {name or _SHARED_OFFSET: offset for name, offset in last.items()}


def _of(offset: Mapping[str, str], name: str) -> str:
    """Return the part of an offset for a history."""
    return offset.get(name) or offset.get(_SHARED_OFFSET, START_OFFSET)
