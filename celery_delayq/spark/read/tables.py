"""The tables of the data source and their columns."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from celery_delayq.errors import ConfigError

ARROW_TYPES = {
    "STRING": pa.string(),
    "TIMESTAMP_LTZ": pa.timestamp("us", "UTC"),
    "DATE": pa.date32(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "BOOLEAN": pa.bool_(),
    "BINARY": pa.binary(),
    "MAP<STRING, STRING>": pa.map_(pa.string(), pa.string()),
}

#: The columns of each SQL type but STRING, in all tables. `TIMESTAMP_LTZ` is not written
#: `TIMESTAMP`, because the meaning of that depends on a setting.
_COLUMNS_OF_TYPE = {
    "TIMESTAMP_LTZ": (
        *("due", "eta", "expires", "promoted", "started", "ended", "died"),
        *("start", "end", "since", "next", "last_run_at"),
    ),
    "DATE": ("day",),
    "INT": ("priority", "step", "retries", "deliveries", "catch_up_max"),
    "BIGINT": ("due_ms", "died_ms", "max_runs", "total_run_count"),
    "BOOLEAN": ("cancelled", "duplicate"),
    "BINARY": ("raw", "data"),
    "MAP<STRING, STRING>": ("headers", "context", "options"),
}
_TYPE_OF_COLUMN = {name: kind for kind, names in _COLUMNS_OF_TYPE.items() for name in names}


def with_types(*names: str) -> Mapping[str, str]:
    """Return columns with their SQL types. A name has the same type in each table."""
    return {name: _TYPE_OF_COLUMN.get(name, "STRING") for name in names}


#: Columns of a message besides its id and task; `raw` has the bytes of unreadable data.
_MESSAGE_COLUMNS = (
    *("args", "kwargs", "unique_key", "retries", "expires"),
    *("root_id", "parent_id", "group_id", "origin", "headers", "context", "raw"),
)
_WAIT_COLUMNS = ("id", "task", "queue", "state", "due", "eta", "priority")

#: The columns of each table with their SQL types.
TABLE_COLUMNS: Mapping[str, Mapping[str, str]] = {
    "scheduled": with_types(*_WAIT_COLUMNS, *_MESSAGE_COLUMNS),
    "ready": with_types(*_WAIT_COLUMNS, "cancelled", *_MESSAGE_COLUMNS),
    "leased": with_types(*_WAIT_COLUMNS, "worker", *_MESSAGE_COLUMNS),
    "dead_letters": with_types(
        *("id", "task_id", "task", "queue", "died", "reason", "exception", "error", "traceback"),
        *("worker", "started", "deliveries", "due", "eta", *_MESSAGE_COLUMNS),
    ),
    "history": with_types(
        *("offset", "id", "task", "queue", "worker", "state", "due", "promoted", "started"),
        *("ended", "retries", "deliveries", "reason", "raw"),
    ),
    "periodic": with_types(
        *("name", "task", "source", "status", "when", "schedule", "args", "kwargs", "options"),
        *("timezone", "start", "end", "max_runs", "catch_up", "catch_up_max", "overlap"),
        *("since", "next", "last_run_at", "total_run_count", "problem", "raw"),
    ),
}

#: The column by which a table is sorted, for the tables that are in order of time.
TIME_COLUMNS = {"scheduled": "due", "dead_letters": "died", "history": "ended"}


def schema_of(columns: Mapping[str, str]) -> str:
    """Return columns with their SQL types as DDL."""
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())


def read_table(spark: SparkSession, options: Mapping[str, str], *names: str) -> DataFrame:
    """Return some columns of a table by the data source; *options* name the table."""
    columns = TABLE_COLUMNS[options["table"]]
    reader = spark.read.schema(schema_of({name: columns[name] for name in names}))
    return reader.format("celery_delayq").options(**options).load()


def columns_of(table: str, schema: StructType) -> Mapping[str, str]:
    """Return the columns in a schema with their SQL types.

    Raises
    ------
    ConfigError
        The table has no such column, or it has another type.
    """
    known = TABLE_COLUMNS[table]
    for field in schema.fields:
        kind = known.get(field.name)
        plain = "" if kind is None else kind.removesuffix("_LTZ").lower().replace(" ", "")
        if plain != field.dataType.simpleString():
            expected = f"{kind}" if kind else f"one of {', '.join(known)}"
            raise ConfigError(
                f"schema: {field.name} {field.dataType.simpleString()} is no column of the table "
                f"{table}; expected {expected}"
            )
    return {field.name: known[field.name] for field in schema.fields}
