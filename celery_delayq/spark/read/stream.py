"""The streaming reader of the data source: the history of runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from celery_delayq.errors import ConfigError, InvalidCursor
from celery_delayq.model.history import check_range
from celery_delayq.spark.access import opened
from celery_delayq.spark.options import ReadOptions
from celery_delayq.spark.read.batch import read
from celery_delayq.spark.read.filters import Wanted
from celery_delayq.spark.read.history import START, check_loss, place_of, plan_runs
from celery_delayq.spark.read.parts import ReadPart
from celery_delayq.spark.read.table_rows import TableRows
from celery_delayq.spark.read.tables import columns_of

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # PySpark 4.1, where that trigger is one batch of all there is

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Stands for the one of later versions."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the history as a stream.

    The offset is the last run that was read. The history only grows at its end, so each run is
    read once, whatever its due time.

    Parameters
    ----------
    schema : StructType
        As for :class:`~celery_delayq.spark.read.batch.BatchReader`.

    Raises
    ------
    ConfigError
        An option is wrong, or the table is not the history.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        if options.table != "history":
            raise ConfigError(
                f"table={options.table!r} cannot be read as a stream, history can; "
                "use spark.read in place of spark.readStream"
            )
        try:
            check_range(options.after or START, None)
        except InvalidCursor as exc:
            raise ConfigError(f"option {exc}") from exc
        self._options = options
        self._names = columns_of(options.table, schema)
        self._wanted = Wanted.of(options)
        #: The last run for the trigger `availableNow`.
        self._target: str | None = None

    def initialOffset(self) -> dict[str, str]:  # noqa: N802
        """Return where a new stream begins."""
        return {"id": self._options.after or START}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, str]:  # noqa: ARG002, N802
        """Return the last run by now."""
        reached = start["id"] if start else self.initialOffset()["id"]
        last = self._target or self._last() or reached
        return {"id": max(reached, last, key=place_of)}

    def reportLatestOffset(self) -> dict[str, str] | None:  # noqa: N802
        """Return the last run by now, for the progress of the query."""
        last = self._last()
        return None if last is None else {"id": last}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read no later runs than the last one by now."""
        self._target = self._last() or START

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> list[ReadPart]:
        """Return the parts between two offsets."""
        options = self._options
        with opened(options.access) as delayq:
            if start != end:
                check_loss(delayq.store, start["id"], options.onloss)
            return plan_runs(
                delayq.store,
                start["id"],
                end["id"],
                options.partitions,
                options.batchsize,
                options.onloss,
            )

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Yield the runs of a part; opens a connection of its own."""
        return read(
            self._options,
            TableRows(self._options.table, self._names, self._wanted.tests()),
            partition,
        )

    def _last(self) -> str | None:
        with opened(self._options.access) as delayq:
            return delayq.store.history.last()
