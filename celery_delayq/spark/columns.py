"""From Arrow batches to what ``schedule_many`` takes. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from hashlib import blake2b
from typing import Any, NamedTuple

import pyarrow as pa
from kombu.utils.json import JSONEncoder

from celery_delayq.errors import ConfigError
from celery_delayq.items import Item
from celery_delayq.spark.options import WriteOptions
from celery_delayq.templates import nonce_of_id
from celery_delayq.unique import Key

#: In one order of keys: equal rows have equal texts.
_encode: Callable[[Any], str] = JSONEncoder(sort_keys=True).encode

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

#: The last moment of the year 9999, in µs.
_LATEST = 253_402_300_799_999_999


class RowItem(NamedTuple):
    """What a row comes to: an item and its nonce, or why it is none."""

    row: int
    item: Item | None
    nonce: str = ""
    error: str = ""


class Rows:
    """Makes items of rows.

    Parameters
    ----------
    schema : pa.Schema
        Of the rows. Columns that are no option are keyword arguments.

    Raises
    ------
    ConfigError
        A column that an option names is missing, or of another type.
    """

    def __init__(self, options: WriteOptions, schema: pa.Schema) -> None:
        self._options = options
        self._id, self._eta, self._delay = (
            options.idcolumn,
            options.etacolumn,
            options.delaycolumn,
        )
        used = [name for name in (self._id, self._eta, self._delay) if name is not None]
        for option in ("idcolumn", "etacolumn", "delaycolumn"):
            name = getattr(options, option)
            if name is not None and name not in schema.names:
                raise ConfigError(
                    f"{option}={name!r}: no such column; there are: {', '.join(schema.names)}"
                )
        if self._eta is not None and not pa.types.is_timestamp(
            kind := schema.field(self._eta).type
        ):
            raise ConfigError(f"etacolumn={self._eta!r} is of type {kind}: expected a timestamp")
        if self._delay is not None and not _is_delay(kind := schema.field(self._delay).type):
            raise ConfigError(
                f"delaycolumn={self._delay!r} is of type {kind}: expected seconds or an interval"
            )
        if not _is_text(kind := schema.field(self._id).type):
            raise ConfigError(
                f"idcolumn={self._id!r} is of type {kind}: expected text, a number or a time; "
                "several columns make one by concat_ws"
            )
        self._names = [name for name in schema.names if name not in used]

    def items(self, batch: pa.RecordBatch) -> Iterator[RowItem]:
        """Yield what each row of a batch comes to."""
        keys = batch.column(self._id).to_pylist()
        whens = self._whens(batch)
        values = [batch.column(name).to_pylist(maps_as_pydicts="strict") for name in self._names]
        cells = zip(*values, strict=True) if values else iter([()] * batch.num_rows)
        make, names = self._item, self._names
        for row, (key, when, given) in enumerate(zip(keys, whens, cells, strict=True)):
            try:
                yield make(row, key, when, dict(zip(names, given, strict=True)))
            except (ValueError, TypeError) as exc:
                yield RowItem(row, None, error=str(exc))

    def _item(self, row: int, key: Any, when: Any, kwargs: dict[str, Any]) -> RowItem:
        eta = countdown = None
        if key is None or key == "":
            raise ValueError(f"{self._id} is {key!r}: nothing identifies the row")
        if self._eta is not None:
            if when is None:
                raise ValueError(f"{self._eta} is null: nothing says when")
            if not 0 <= when <= _LATEST:
                raise ValueError(f"{self._eta} lies outside the years 1970 to 9999")
            eta = _EPOCH + timedelta(microseconds=when)
        elif self._delay is not None:
            if when is None:
                raise ValueError(f"{self._delay} is null: nothing says when")
            countdown = when.total_seconds() if isinstance(when, timedelta) else float(when)
        id = f"{self._options.task}:{key}"
        text = f"{self._options.priority} {when} {_encode(kwargs)}"
        version = blake2b(text.encode(), digest_size=8).hexdigest()
        item = Item(
            kwargs=kwargs,
            eta=eta,
            countdown=countdown,
            id=id,
            unique_key=Key(key),
            version=version,
        )
        return RowItem(row, item, nonce_of_id(id, version))

    def _whens(self, batch: pa.RecordBatch) -> Sequence[Any]:
        """Return the times of rows: µs since 1970, or what is a number of seconds."""
        if self._eta is not None:
            # Without a zone (TIMESTAMP_NTZ) it is UTC, as everywhere in Celery.
            column = batch.column(self._eta)
            micros = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
            return micros.to_pylist()  # type: ignore[no-any-return]
        if self._delay is not None:
            return batch.column(self._delay).to_pylist()  # type: ignore[no-any-return]
        return [None] * batch.num_rows


def _is_delay(kind: pa.DataType) -> bool:
    types = pa.types
    return any(
        check(kind)
        for check in (types.is_integer, types.is_floating, types.is_decimal, types.is_duration)
    )


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    return any(
        check(kind)
        for check in (
            types.is_string,
            types.is_large_string,
            types.is_integer,
            types.is_decimal,
            types.is_temporal,
        )
    )
