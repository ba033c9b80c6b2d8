"""Arrow schemas, across versions of PySpark."""

from __future__ import annotations

from inspect import signature

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, VariantType

from celery_delayq.errors import ConfigError

#: PySpark before 4.2 has no such argument, and its times are in UTC.
_IN_UTC = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of rows, with times in UTC.

    Raises
    ------
    ConfigError
        A column is or contains a VARIANT: in Arrow, a VARIANT looks like a struct of two binaries.
    """
    for field in schema.fields:
        if _has_variant(field.dataType):
            raise ConfigError(
                f"{field.name} is of type {field.dataType.simpleString()}: expected no VARIANT; "
                "convert the column to text by to_json, or cast it"
            )
    return to_arrow_schema(schema, **_IN_UTC)  # type: ignore[arg-type]


def _has_variant(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_has_variant(field.dataType) for field in kind.fields)
    if isinstance(kind, MapType):
        return _has_variant(kind.keyType) or _has_variant(kind.valueType)
    if isinstance(kind, ArrayType):
        return _has_variant(kind.elementType)
    return isinstance(kind, VariantType)
