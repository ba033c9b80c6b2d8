"""The tables of the data source and their columns. No I/O."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
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

#: Columns of a message besides its id and task; `raw` has the bytes of unreadable data.
_MESSAGE_COLUMNS = {
    "args": "STRING",
    "kwargs": "STRING",
    "unique_key": "STRING",
    "retries": "INT",
    "expires": "TIMESTAMP_LTZ",
    "root_id": "STRING",
    "parent_id": "STRING",
    "group_id": "STRING",
    "origin": "STRING",
    "headers": "MAP<STRING, STRING>",
    "context": "MAP<STRING, STRING>",
    "raw": "BINARY",
}
_NAME_COLUMNS = {"id": "STRING", "task": "STRING", "queue": "STRING"}
_WAIT_COLUMNS = {
    "state": "STRING",
    "due": "TIMESTAMP_LTZ",
    "eta": "TIMESTAMP_LTZ",
    "priority": "INT",
}

#: The columns of each table with their SQL types. `TIMESTAMP_LTZ` is not written `TIMESTAMP`,
#: because the meaning of that depends on a setting.
TABLE_COLUMNS: Mapping[str, Mapping[str, str]] = {
    "scheduled": {**_NAME_COLUMNS, **_WAIT_COLUMNS, **_MESSAGE_COLUMNS},
    "ready": {**_NAME_COLUMNS, **_WAIT_COLUMNS, "cancelled": "BOOLEAN", **_MESSAGE_COLUMNS},
    "leased": {**_NAME_COLUMNS, **_WAIT_COLUMNS, "worker": "STRING", **_MESSAGE_COLUMNS},
    "dead_letters": {
        "id": "STRING",
        "task_id": "STRING",
        **_NAME_COLUMNS,
        "died": "TIMESTAMP_LTZ",
        "reason": "STRING",
        "exception": "STRING",
        "error": "STRING",
        "traceback": "STRING",
        "worker": "STRING",
        "started": "TIMESTAMP_LTZ",
        "deliveries": "INT",
        "due": "TIMESTAMP_LTZ",
        "eta": "TIMESTAMP_LTZ",
        **_MESSAGE_COLUMNS,
    },
    "history": {
        "offset": "STRING",
        **_NAME_COLUMNS,
        "worker": "STRING",
        "state": "STRING",
        "due": "TIMESTAMP_LTZ",
        "promoted": "TIMESTAMP_LTZ",
        "started": "TIMESTAMP_LTZ",
        "ended": "TIMESTAMP_LTZ",
        "retries": "INT",
        "deliveries": "INT",
        "reason": "STRING",
        "raw": "BINARY",
    },
    "periodic": {
        "name": "STRING",
        "task": "STRING",
        "source": "STRING",
        "status": "STRING",
        "when": "STRING",
        "schedule": "STRING",
        "args": "STRING",
        "kwargs": "STRING",
        "options": "MAP<STRING, STRING>",
        "timezone": "STRING",
        "start": "TIMESTAMP_LTZ",
        "end": "TIMESTAMP_LTZ",
        "max_runs": "BIGINT",
        "catch_up": "STRING",
        "catch_up_max": "INT",
        "overlap": "STRING",
        "since": "TIMESTAMP_LTZ",
        "next": "TIMESTAMP_LTZ",
        "last_run_at": "TIMESTAMP_LTZ",
        "total_run_count": "BIGINT",
        "problem": "STRING",
        "raw": "BINARY",
    },
}

#: The column by which a table is sorted, for the tables that are in order of time.
TIME_COLUMNS = {"scheduled": "due", "dead_letters": "died", "history": "ended"}


def schema_of(columns: Mapping[str, str]) -> str:
    """Return columns with their SQL types as DDL."""
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())


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
