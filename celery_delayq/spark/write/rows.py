"""Makes calls of a task from Arrow batches, encoded column by column. No I/O."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import pyarrow as pa
from kombu.utils.json import JSONEncoder, loads
from pyarrow import types

from celery_delayq.errors import ConfigError
from celery_delayq.model.envelope import EPOCH, Due
from celery_delayq.model.unique import Key
from celery_delayq.schedule.items import Item
from celery_delayq.schedule.message_template import EncodedCall, message_id_of_id
from celery_delayq.spark.options import WriteOptions
from celery_delayq.spark.write.refused_rows import ERROR_COLUMN

#: Keys are sorted, so that equal rows have equal texts.
_encode: Callable[[Any], str] = JSONEncoder(sort_keys=True).encode
_encode_text: Callable[[Any], str] = json.JSONEncoder().encode


_TEXT_TYPES = (types.is_string, types.is_large_string)

#: Types with the same ``repr`` in Python and in Celery's ``saferepr``.
_FLAT_TYPES = (*_TEXT_TYPES, types.is_integer, types.is_floating, types.is_boolean)

#: The valid types of the column of each option, and their names.
_COLUMN_TYPES = {
    "idcolumn": (
        (*_TEXT_TYPES, types.is_integer, types.is_decimal, types.is_temporal),
        "text, a number or a time; several columns make one by concat_ws",
    ),
    "etacolumn": ((types.is_timestamp,), "a timestamp"),
    "delaycolumn": (
        (types.is_integer, types.is_floating, types.is_decimal, types.is_duration),
        "seconds or an interval",
    ),
}

#: The last moment of the year 9999, in µs.
_MAX_TIME_US = 253_402_300_799_999_999


class TaskRow(NamedTuple):
    """The call of a task for a row, or the reason for the refusal of the row.

    Attributes
    ----------
    place : int
        Index in its batch.
    key, id, message_id : str
        Identify the row and its task.
    when : int | float | None
        The ETA, in µs since 1970, or a delay in seconds.
    kwargs : str
        The keyword arguments as JSON.
    shown : str | None
        The ``repr`` of the keyword arguments, if it is known.
    error : str
        Why the row is refused; ``""``: it is not refused.
    """

    place: int
    key: str = ""
    id: str = ""
    message_id: str = ""
    when: Any = None
    kwargs: str = "{}"
    shown: str | None = None
    error: str = ""


class TaskRows:
    """Makes items for ``schedule_many`` from rows.

    Parameters
    ----------
    schema : pa.Schema
        Schema of the rows. A column that no option names is a keyword argument, except the column
        with the reason of a refusal.

    Raises
    ------
    ConfigError
        A column that an option names is missing, or of another type.
    """

    def __init__(self, options: WriteOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = pa.schema([each.with_type(_in_utc(each.type)) for each in schema])
        self._id, self._eta = options.idcolumn, options.etacolumn
        self._delay = options.delaycolumn
        twice = [name for name, number in Counter(schema.names).items() if number > 1]
        if twice:
            raise ConfigError(f"{', '.join(twice)}: several columns have this name; rename them")
        used = [
            name for name in (self._id, self._eta, self._delay, ERROR_COLUMN) if name is not None
        ]
        for option, (kinds, expected) in _COLUMN_TYPES.items():
            name = getattr(options, option)
            if name is not None and name not in schema.names:
                raise ConfigError(
                    f"{option}={name!r}: no such column; there are: {', '.join(schema.names)}"
                )
            if name is not None and not _is_any(kind := schema.field(name).type, kinds):
                raise ConfigError(f"{option}={name!r} is of type {kind}: expected {expected}")
        # Sorted, so that the order of columns does not change the version.
        self._names = sorted(name for name in schema.names if name not in used)
        self._json = _template(map(_encode_text, self._names), "%s")
        is_flat = all(_is_any(schema.field(name).type, _FLAT_TYPES) for name in self._names)
        self._shown = _template(map(repr, self._names), "%r") if is_flat else ""

    def read(self, batch: pa.RecordBatch) -> Iterator[TaskRow]:
        """Yield the call of each row of a batch. Spark's session may have any time zone."""
        batch = batch.cast(self._schema)
        wrong: dict[int, str] = {}
        keys = _values(self._id, batch.column(self._id), wrong)
        values, texts = [], []
        for name in self._names:
            column = batch.column(name)
            values.append(_values(name, column, wrong))
            texts.append(_texts(column.type, values[-1], wrong))
        none = [()] * batch.num_rows
        cells = zip(*values, strict=True) if values else none
        encoded = zip(*texts, strict=True) if texts else none
        rows = zip(keys, self._whens(batch), cells, encoded, strict=True)
        for place, (key, when, given, kwargs) in enumerate(rows):
            error = wrong.get(place) or self._wrong(key, when)
            if error:
                yield TaskRow(place, error=error)
            else:
                yield self._row(place, str(key), when, given, kwargs)

    def encoded(self, row: TaskRow) -> EncodedCall:
        """Return the call of a row with an ETA, for a template."""
        eta = (EPOCH + timedelta(microseconds=row.when)).isoformat()
        due = Due(-(-row.when // 1000))
        return EncodedCall(row.id, row.message_id, due, eta, row.key, row.kwargs, row.shown)

    def item(self, row: TaskRow) -> Item:
        """Return the call of a row as an item of ``schedule_many``."""
        is_eta = self._eta is not None
        return Item(
            kwargs=loads(row.kwargs),
            eta=EPOCH + timedelta(microseconds=row.when) if is_eta else None,
            countdown=None if is_eta else row.when,
            id=row.id,
            unique_key=Key(row.key),
            version=self._version(row.when, row.kwargs),
        )

    def _wrong(self, key: Any, when: Any) -> str:
        """Return why a row cannot be scheduled, ``""`` if it can."""
        if key is None or (isinstance(key, str) and not key.strip()):
            return f"{self._id} is {key!r}: nothing identifies the row"
        column = self._eta or self._delay
        if column is not None and when is None:
            return f"{column} is null: nothing says when"
        if self._eta is not None and not 0 <= when <= _MAX_TIME_US:
            return f"{self._eta} lies outside the years 1970 to 9999"
        return ""

    def _row(self, place: int, key: str, when: Any, given: Any, encoded: Any) -> TaskRow:
        id = f"{self._options.task}:{key}"
        kwargs = self._json % encoded
        message_id = message_id_of_id(id, self._version(when, kwargs))
        shown = self._shown % given if self._shown else None
        return TaskRow(place, key, id, message_id, when, kwargs, shown)

    def _version(self, when: Any, kwargs: str) -> str:
        return f"{self._options.priority} {when} {kwargs}"

    def _whens(self, batch: pa.RecordBatch) -> Sequence[Any]:
        """Return the times of rows: µs since 1970, or seconds."""
        if self._eta is not None:
            # A time without a zone (TIMESTAMP_NTZ) is UTC, as in Celery.
            column = batch.column(self._eta)
            micros = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
            return micros.to_pylist()  # type: ignore[no-any-return]
        if self._delay is not None:
            return [*map(_seconds, batch.column(self._delay).to_pylist())]
        return [None] * batch.num_rows


def _in_utc(kind: pa.DataType) -> pa.DataType:
    """Return a type in which all time zones are replaced by UTC."""

    def inner(field: pa.Field) -> pa.Field:
        return field.with_type(_in_utc(field.type))

    if types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if types.is_struct(kind):
        return pa.struct([inner(kind.field(place)) for place in range(kind.num_fields)])
    if types.is_list(kind):
        return pa.list_(inner(kind.value_field))
    if types.is_large_list(kind):
        return pa.large_list(inner(kind.value_field))
    if types.is_map(kind):
        return pa.map_(inner(kind.key_field), inner(kind.item_field))
    return kind


def _seconds(delay: Any) -> float | None:
    if delay is None:
        return None
    return delay.total_seconds() if isinstance(delay, timedelta) else float(delay)


#: Errors of Arrow for a cell that has no Python value, such as a map whose keys are maps.
_CELL_ERRORS = (ValueError, KeyError, OverflowError, TypeError)


def _values(name: str, column: pa.Array, wrong: dict[int, str]) -> list[Any]:
    """Return the Python values of a column; add errors of cells without a value to *wrong*."""
    try:
        return column.to_pylist(maps_as_pydicts="strict")  # type: ignore[no-any-return]
    except _CELL_ERRORS:
        pass
    values: list[Any] = []
    for place, cell in enumerate(column):
        try:
            values.append(cell.as_py(maps_as_pydicts="strict"))
        except _CELL_ERRORS as exc:
            wrong.setdefault(place, f"{name}: {exc}")
            values.append(None)
    return values


_BOOLEAN_TEXTS = {True: "true", False: "false", None: "null"}


def _texts(kind: pa.DataType, values: list[Any], wrong: dict[int, str]) -> list[str]:
    """Return values of a column as JSON; add errors to *wrong*."""
    if _is_any(kind, _TEXT_TYPES):
        encode: Callable[[Any], str] = _encode_text
    elif types.is_boolean(kind):
        encode = _BOOLEAN_TEXTS.__getitem__
    elif types.is_integer(kind) and None not in values:
        encode = str
    elif types.is_floating(kind) and None not in values and all(map(math.isfinite, values)):
        encode = repr
    else:
        encode = _encode
    try:
        return [*map(encode, values)]
    except (ValueError, TypeError):
        return [_text(encode, value, place, wrong) for place, value in enumerate(values)]


def _text(encode: Callable[[Any], str], value: Any, place: int, wrong: dict[int, str]) -> str:
    try:
        return encode(value)
    except (ValueError, TypeError) as exc:
        wrong.setdefault(place, str(exc))
        return ""


def _template(names: Iterable[str], cell: str) -> str:
    """Return a format string for an object with these names; *cell* is the format of a value."""
    texts = (f"{name.replace('%', '%%')}: {cell}" for name in names)
    return f"{{{', '.join(texts)}}}"


def _is_any(kind: pa.DataType, checks: Iterable[Callable[[pa.DataType], bool]]) -> bool:
    return any(check(kind) for check in checks)
