"""Selects the rows to read, by options and by filters that Spark pushes down. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from celery_delayq.errors import ConfigError, InvalidETA
from celery_delayq.model.envelope import EPOCH, MAX_DUE_MS
from celery_delayq.model.names import Renames
from celery_delayq.model.scheduled import bound_ms
from celery_delayq.spark.options import ReadOptions
from celery_delayq.spark.read.tables import TABLE_COLUMNS, TIME_COLUMNS

_MS = timedelta(milliseconds=1)


@dataclass(frozen=True)
class RowFilter:
    """The rows of a table to read.

    Attributes
    ----------
    queues : frozenset[str] | None
        Only these queues; None: all queues.
    tasks : frozenset[str] | None
        Only tasks with these names; None: all tasks.
    low, high : int | None
        Inclusive bounds, in ms since 1970, for the column of :data:`.tables.TIME_COLUMNS`.
    """

    table: str
    queues: frozenset[str] | None = None
    tasks: frozenset[str] | None = None
    low: int | None = None
    high: int | None = None

    @classmethod
    def of(cls, options: ReadOptions, renames: Renames) -> RowFilter:
        """Return the filter that options describe. The option *task* also means its former names.

        Raises
        ------
        ConfigError
            A time cannot be read, or the table has no column for an option.
        """
        table = options.table
        for name in ("queue", "task"):
            if getattr(options, name) is not None and name not in TABLE_COLUMNS[table]:
                raise ConfigError(
                    f"{name}={getattr(options, name)!r}: the table {table} has no {name}; leave "
                    "the option out"
                )
        try:
            low, until = (bound_ms(name, getattr(options, name)) for name in ("since", "until"))
        except InvalidETA as exc:
            raise ConfigError(str(exc)) from exc
        if table not in TIME_COLUMNS and (low, until) != (None, None):
            raise ConfigError(
                f"since={options.since!r}, until={options.until!r}: the table {table} is in no "
                f"order of time, but {', '.join(TIME_COLUMNS)} are; filter the rows instead"
            )
        queues = None if options.queue is None else frozenset({options.queue})
        tasks = None if options.task is None else frozenset(renames.names(options.task))
        return cls(table, queues, tasks, low, None if until is None else until - 1)

    def narrowed(self, filter: Filter) -> RowFilter | None:
        """Return this filter combined with *filter*; None if *filter* is not supported."""
        column = ".".join(getattr(filter, "attribute", ()))
        value = getattr(filter, "value", None)
        if column == "queue" and "queue" in TABLE_COLUMNS[self.table]:
            names: Iterable[Any] = filter.value if isinstance(filter, In) else (value,)
            if isinstance(filter, (EqualTo, In)) and all(isinstance(each, str) for each in names):
                queues = frozenset(names)
                return replace(
                    self, queues=queues & (queues if self.queues is None else self.queues)
                )
        elif column == "task" and isinstance(filter, EqualTo) and isinstance(value, str):
            tasks = frozenset({value})
            return replace(self, tasks=tasks if self.tasks is None else tasks & self.tasks)
        elif column == TIME_COLUMNS.get(self.table) and isinstance(value, datetime):
            return self._between(filter, value)
        return None

    def conditions(self) -> Mapping[str, Callable[[Any], bool]]:
        """Return the conditions to check row by row, by column."""
        found: dict[str, Callable[[Any], bool]] = {}
        if self.tasks is not None:
            found["task"] = self.tasks.__contains__
        if self.table == "history":
            if self.queues is not None:
                found["queue"] = self.queues.__contains__
            if self.low is not None or self.high is not None:
                found["ended"] = self._is_in_time
        return found

    def _is_in_time(self, time: datetime | None) -> bool:
        if time is None:
            return False
        ms = (time - EPOCH) // _MS
        return (self.low is None or self.low <= ms) and (self.high is None or ms <= self.high)

    def _between(self, filter: Filter, time: datetime) -> RowFilter | None:
        since = (time if time.tzinfo else time.replace(tzinfo=timezone.utc)) - EPOCH
        below, above = since // _MS, -(-since // _MS)
        bounds: Mapping[type[Filter], tuple[int | None, int | None]] = {
            GreaterThanOrEqual: (above, None),
            GreaterThan: (below + 1, None),
            LessThan: (None, above - 1),
            LessThanOrEqual: (None, below),
            EqualTo: (above, below),
        }
        # All times in rows can be represented in Python.
        if type(filter) not in bounds or not 0 <= above < MAX_DUE_MS:
            return None
        low, high = bounds[type(filter)]
        lows = [each for each in (self.low, low) if each is not None]
        highs = [each for each in (self.high, high) if each is not None]
        return replace(self, low=max(lows, default=None), high=min(highs, default=None))
