"""How tables are cut into parts, and which filters are taken."""

from __future__ import annotations

import pickle
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pyspark.sql import types
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from celery_delayq.errors import ConfigError
from celery_delayq.model.history import place_of
from celery_delayq.model.names import Renames
from celery_delayq.spark.arrow import arrow_schema
from celery_delayq.spark.options import ReadOptions
from celery_delayq.spark.read.filters import RowFilter
from celery_delayq.spark.read.partitions import split_sizes
from celery_delayq.spark.read.readers import BatchReader, StreamReader
from celery_delayq.spark.read.table_rows import TableRows
from celery_delayq.spark.read.tables import ARROW_TYPES, TABLE_COLUMNS, schema_of

NINE = datetime(2030, 1, 31, 9, tzinfo=timezone.utc)
MS = int(NINE.timestamp() * 1000)
MICRO = timedelta(microseconds=1)

#: Spark's types, by their names in SQL.
KINDS = {
    "STRING": types.StringType(),
    "TIMESTAMP_LTZ": types.TimestampType(),
    "INT": types.IntegerType(),
    "BIGINT": types.LongType(),
    "BOOLEAN": types.BooleanType(),
    "BINARY": types.BinaryType(),
    "MAP<STRING, STRING>": types.MapType(types.StringType(), types.StringType()),
}
VARIANT = types.VariantType()


@pytest.mark.parametrize(
    "kind",
    [
        VARIANT,
        types.StructType().add("a", types.ArrayType(types.MapType(types.StringType(), VARIANT))),
    ],
)
def test_a_variant_is_refused(kind: types.DataType) -> None:
    with pytest.raises(ConfigError, match=r"v is of type .*: expected no VARIANT"):
        arrow_schema(types.StructType().add("v", kind))


def schema(table: str, *names: str) -> types.StructType:
    """Return the columns of a table without asking a session of Spark."""
    found = types.StructType()
    for name, kind in TABLE_COLUMNS[table].items():
        if not names or name in names:
            found.add(name, KINDS[kind])
    return found


def reader(table: str = "scheduled", *names: str, **options: str) -> BatchReader:
    given = ReadOptions.of({"table": table, "url": "delayq+redis://nowhere", **options})
    return BatchReader(given, schema(table, *names))


# -- parts


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("sizes", [[], [0], [1], [10], [0, 5, 0, 9], [1] * 20, [1000, 1, 1000]])
def test_parts_have_all_of_it_once_and_are_of_equal_size(sizes: list[int], parts: int) -> None:
    found = split_sizes(sizes, parts)

    places = [(which, n) for part in found for which, start, end in part for n in range(start, end)]
    assert places == [(which, n) for which, size in enumerate(sizes) for n in range(size)]
    assert len(found) <= parts
    each = [sum(end - start for _, start, end in part) for part in found]
    assert len({*each[:-1]}) <= 1


def test_few_rows_are_one_part() -> None:
    assert split_sizes([20, 30], 8, least=1000) == [[(0, 0, 20), (1, 0, 30)]]


def test_offsets_are_in_the_order_of_redis() -> None:
    offsets = ["0", "0-1", "9-10", "10-2", "10-10"]
    assert [*map(place_of, offsets)] == [(0, 0), (0, 1), (9, 10), (10, 2), (10, 10)]


# -- what Spark gets


@pytest.mark.parametrize("table", TABLE_COLUMNS)
def test_columns_are_of_the_types_that_spark_expects(table: str) -> None:
    expected = arrow_schema(schema(table))

    assert TableRows(TABLE_COLUMNS[table])._schema.equals(expected)
    assert schema_of(TABLE_COLUMNS[table]).count("`") == 2 * len(TABLE_COLUMNS[table])
    assert {*TABLE_COLUMNS[table].values()} <= ARROW_TYPES.keys()


@pytest.mark.parametrize("table", TABLE_COLUMNS)
def test_readers_go_to_executors(table: str) -> None:
    copy = pickle.loads(pickle.dumps(reader(table)))

    assert copy._options == reader(table)._options
    assert copy.pushFilters([]) == []


def test_spark_does_not_refuse_a_reader_while_it_pushes_no_filters() -> None:
    pushes: Any = reader().pushFilters

    # As `pyspark.sql.worker.plan_data_source_read` looks at it.
    assert pushes.__func__ is DataSourceReader.pushFilters


def test_a_schema_may_leave_columns_out_but_add_none() -> None:
    assert [*reader("scheduled", "due", "id")._columns] == ["id", "due"]
    with pytest.raises(ConfigError, match="offset string is no column of the table scheduled"):
        BatchReader(ReadOptions.of({"url": "delayq+redis://nowhere"}), schema("history"))


@pytest.mark.parametrize("after", ["soon", "-1", "1-2-3"])
def test_a_stream_begins_after_an_offset_only(after: str) -> None:
    options = {"table": "history", "after": after, "url": "delayq+redis://nowhere"}
    with pytest.raises(ConfigError, match="expected the offset of a run"):
        StreamReader(ReadOptions.of(options), schema("history"))


# -- filters

DUE = ("due",)


@pytest.mark.parametrize(
    ("filter", "low", "high"),
    [
        (GreaterThanOrEqual(DUE, NINE), MS, None),
        (GreaterThanOrEqual(DUE, NINE + MICRO), MS + 1, None),
        (GreaterThan(DUE, NINE), MS + 1, None),
        (GreaterThan(DUE, NINE + MICRO), MS + 1, None),
        (LessThan(DUE, NINE), None, MS - 1),
        (LessThan(DUE, NINE + MICRO), None, MS),
        (LessThanOrEqual(DUE, NINE), None, MS),
        (LessThanOrEqual(DUE, NINE + MICRO), None, MS),
        (EqualTo(DUE, NINE), MS, MS),
        (EqualTo(DUE, NINE + MICRO), MS + 1, MS),
    ],
)
def test_times_are_taken_to_the_millisecond(filter: Any, low: int | None, high: int | None) -> None:
    assert RowFilter("scheduled").narrowed(filter) == RowFilter("scheduled", low=low, high=high)


@pytest.mark.parametrize(
    "filter",
    [
        GreaterThan(DUE, datetime(1969, 1, 1, tzinfo=timezone.utc)),
        LessThan(DUE, datetime.max.replace(tzinfo=timezone.utc)),
        IsNotNull(DUE),
        Not(EqualTo(("task",), "a")),
        EqualTo(("queue",), None),
        In(("queue",), ("a", None)),
        EqualTo(("id",), "a"),
        EqualTo(("headers", "task"), "a"),
        EqualTo(("eta",), NINE),
    ],
)
def test_other_filters_are_left_to_spark(filter: Any) -> None:
    it = reader()

    assert it.pushFilters([filter]) == [filter]
    assert it._wanted == RowFilter("scheduled")


def test_filters_are_all_to_hold() -> None:
    it = reader(queue="b", since="2030-01-31T09:00:00")
    task = EqualTo(("task",), "one")
    other = EqualTo(("task",), "two")

    assert it.pushFilters([In(("queue",), ("a", "b")), LessThan(DUE, NINE), task]) == []
    assert it._wanted == RowFilter("scheduled", frozenset({"b"}), frozenset({"one"}), MS, MS - 1)
    assert it.pushFilters([other]) == []
    assert it._wanted.tasks == frozenset()


def test_the_option_task_also_means_its_former_names() -> None:
    renames = Renames({"old": "new", "older": "new"})

    def tasks(task: str | None) -> frozenset[str] | None:
        given = {} if task is None else {"task": task}
        return RowFilter.of(ReadOptions.of({"url": "delayq+redis://x", **given}), renames).tasks

    assert tasks("new") == frozenset({"new", "old", "older"})
    assert tasks("old") == frozenset({"old"})
    assert tasks(None) is None
    narrowed = RowFilter("scheduled", tasks=tasks("new")).narrowed(EqualTo(("task",), "old"))
    assert narrowed == RowFilter("scheduled", tasks=frozenset({"old"}))
    assert [*filter(RowFilter("ready", tasks=tasks("new")).conditions()["task"], "ab")] == []
