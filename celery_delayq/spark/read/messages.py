"""Parse many task messages at once into columns. No I/O.

Arrow parses JSON into columns several times as fast as Python. Messages that Arrow cannot parse, or
that are not in Celery's form, are read by Python one by one, with the same columns.
"""

from __future__ import annotations

import json
from binascii import a2b_base64
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from kombu.utils.json import dumps
from pyarrow.json import ParseOptions, ReadOptions, read_json

from celery_delayq.errors import InvalidETA
from celery_delayq.model.canvas import GROUP, group_of
from celery_delayq.model.envelope import due_of_eta, own_of, unique_key
from celery_delayq.model.payload import body_of

#: The Arrow types of columns.
TEXT = pa.string()
TIME = pa.timestamp("us", "UTC")
NUMBER = pa.int32()
MAP = pa.map_(TEXT, TEXT)

#: The columns of a message.
COLUMNS = {
    "id": TEXT,
    "task": TEXT,
    "eta": TIME,
    "args": TEXT,
    "kwargs": TEXT,
    "unique_key": TEXT,
    "retries": NUMBER,
    "expires": TIME,
    "root_id": TEXT,
    "parent_id": TEXT,
    "group_id": TEXT,
    "origin": TEXT,
    "headers": MAP,
    "context": MAP,
}

#: The headers that Celery writes itself; all others are the caller's.
CELERY = frozenset(
    {
        *("lang", "task", "id", "shadow", "eta", "expires", "group", "group_index", "retries"),
        *("timelimit", "root_id", "parent_id", "argsrepr", "kwargsrepr", "origin", "compression"),
        *("ignore_result", "replaced_task_nesting", "stamped_headers", "stamps"),
    }
)

#: Most brackets of a message for Arrow, and the size in bytes up to which they are not counted.
#: Arrow crashes on data that is nested about 10,000 levels deep.
_BRACKETS, _SHORT = 400, 4000

#: Most names of callers' headers in Arrow's schema.
_NAMES = 50

_MOST = 2**31 - 1

#: Columns that are headers of the same name.
_TEXTS = ("id", "task", "root_id", "parent_id", "origin")

_HEADERS = (*_TEXTS, "group", "expires", "compression")
_REST = ', {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'

_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]

Column = Any


class Messages:
    """Reads messages, page after page.

    Parameters
    ----------
    wanted : Collection[str]
        Which of :data:`COLUMNS`.
    """

    def __init__(self, wanted: Collection[str]) -> None:
        self._wanted = [name for name in COLUMNS if name in wanted]
        #: Names of callers' headers that were found.
        self._names: tuple[str, ...] = ("traceparent", "tracestate")

    def columns(self, messages: Sequence[bytes]) -> tuple[dict[str, Column], Sequence[bool]]:
        """Return the wanted columns, and for each message whether it could be read."""
        table = self._parse(messages)
        if table is None:
            return self._one_by_one(messages)
        header = _struct(table, "headers").field
        own = _struct(table, "properties").field("delayq").field
        made: dict[str, Callable[[], Column]] = {
            "eta": lambda: _times(own("eta")),
            "unique_key": lambda: _unique_keys(own("label"), own("unique").field("key")),
            "expires": lambda: _times(header("expires")),
            "group_id": lambda: _first_of(header("group"), own(GROUP)),
            "headers": lambda: _maps(
                {n: header(n) for n in self._names if n not in CELERY}, len(messages)
            ),
            "context": lambda: _contexts(own("context")),
        }
        if "args" in self._wanted or "kwargs" in self._wanted:
            args, kwargs = _arguments(table, messages)
            made |= {"args": lambda: args, "kwargs": lambda: kwargs}
        found = {name: made[name]() if name in made else header(name) for name in self._wanted}
        return found, [True] * len(messages)

    def _parse(self, messages: Sequence[bytes]) -> pa.Table | None:
        """Return the messages parsed by Arrow, None if Python has to read them."""
        lines = []
        for number, message in enumerate(messages):
            if (
                message[:1] != b"{"
                or b"\n" in message
                or (len(message) > _SHORT and _brackets(message) > _BRACKETS)
            ):
                return None
            # The number shows whether each line was parsed as exactly one object.
            lines.append(b'{"#":%d,%b' % (number, message[1:]))
        text = b"\n".join(lines)
        with suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError):
            if not text.isascii():
                text.decode()
            table = self._read(text)
            if "headers" in self._wanted:
                there = {field.name for field in _struct(table, "headers").type}
                names = there - CELERY - {*self._names}
                if names:
                    if len(names) + len(self._names) > _NAMES:
                        return None
                    self._names += tuple(sorted(names))
                    table = self._read(text)
            is_whole = table.column("#").to_pylist() == [*range(len(messages))]
            ids, properties = _struct(table, "headers").field("id"), table.column("properties")
            if is_whole and ids.null_count == properties.null_count == 0:
                return table
        return None

    def _read(self, text: bytes) -> pa.Table:
        infer = "headers" in self._wanted
        names = self._names if infer else ()
        headers = dict.fromkeys((*_HEADERS, *names), TEXT)
        # Fields of any type are read as text.
        own = dict.fromkeys(("label", "eta", "context", GROUP), TEXT)
        unique = pa.struct([("key", TEXT)])
        schema = pa.schema(
            {
                "#": pa.int64(),
                "body": TEXT,
                "content-type": TEXT,
                "content-encoding": TEXT,
                "headers": pa.struct([*headers.items(), ("retries", NUMBER)]),
                "properties": pa.struct(
                    [
                        ("body_encoding", TEXT),
                        ("delayq", pa.struct([*own.items(), ("unique", unique)])),
                    ]
                ),
            }
        )
        table = read_json(
            pa.BufferReader(text),
            ReadOptions(use_threads=False, block_size=len(text) + 1),
            ParseOptions(
                explicit_schema=schema, unexpected_field_behavior="infer" if infer else "ignore"
            ),
        )
        return table.combine_chunks()

    def _one_by_one(self, messages: Sequence[bytes]) -> tuple[dict[str, Column], Sequence[bool]]:
        rows = [read(message) for message in messages]
        columns = {
            name: pa.array([row and row[name] for row in rows], COLUMNS[name])
            for name in self._wanted
        }
        return columns, [row is not None for row in rows]


def read(data: bytes) -> dict[str, Any] | None:
    """Return the values of all columns of one message, None if it is no task message."""
    try:
        message = json.loads(data.decode())
        headers, properties = message["headers"], message["properties"]
        own = own_of(properties)
        if not isinstance(headers, Mapping) or headers["id"] is None:
            return None
        retries = headers.get("retries")
        args, kwargs = _arguments_of(message)
        return {
            **{name: text_of(headers.get(name)) for name in _TEXTS},
            "eta": time_of(own.get("eta")),
            "args": args,
            "kwargs": kwargs,
            "unique_key": text_of(unique_key(own)[1:] or None),
            "retries": retries if type(retries) is int and abs(retries) <= _MOST else None,
            "expires": time_of(headers.get("expires")),
            "group_id": text_of(group_of(headers, own) or None),
            "headers": [
                (str(text_of(name)), text_of(value))
                for name, value in headers.items()
                if name not in CELERY and value is not None
            ],
            "context": _context(own.get("context")),
        }
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def text_of(value: Any) -> str | None:
    """Return a value as text that Spark can store: text as it is, all else as JSON."""
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode("utf-8", "backslashreplace").decode()


def name_of(data: bytes) -> str:
    """Return the name of an entry or a process as text that Spark can store."""
    return data.decode("utf-8", "backslashreplace")


# -- parsed by Arrow --------------------------------------------------------------------------


def _struct(table: pa.Table, name: str) -> Any:
    """Return a column of objects as one array."""
    column = table.column(name)
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


def _all(found: Any) -> bool:
    """Return whether all values are true and none is null."""
    return bool(found.null_count == 0 and (pc.all(found).as_py() is not False))


def _first_of(one: Any, other: Any) -> Column:
    if one.null_count == len(one) == other.null_count:
        return one
    pairs = zip(one.to_pylist(), other.to_pylist(), strict=True)
    return pa.array([first or second or None for first, second in pairs], TEXT)


def _times(texts: Any) -> Column:
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), TIME)
    try:
        return pc.cast(texts, TIME)
    except pa.ArrowInvalid:  # no offset, say
        return pa.array([time_of(text) for text in texts.to_pylist()], TIME)


def _brackets(message: bytes) -> int:
    return message.count(b"{") + message.count(b"[")


def _unique_keys(labels: Any, keys: Any) -> Column:
    if keys.null_count == len(keys) and _all(pc.ends_with(labels, " -")):
        return pa.nulls(len(labels), TEXT)
    keys = keys.to_pylist() if keys.null_count < len(keys) else None
    found = []
    for place, label in enumerate(labels.to_pylist()):
        key = (keys and keys[place]) or (label or "-").rpartition(" ")[2]
        found.append(None if key == "-" else key[1:] or None)
    return pa.array(found, TEXT)


def _maps(columns: Mapping[str, Any], size: int) -> Column:
    there = {n: each.to_pylist() for n, each in columns.items() if each.null_count < size}
    if not there:
        return pa.array([()] * size, MAP)
    rows = zip(*there.values(), strict=True)
    pairs = (zip(there, row, strict=True) for row in rows)
    return pa.array([[each for each in row if each[1] is not None] for row in pairs], MAP)


def _contexts(texts: Any) -> Column:
    if texts.null_count == len(texts):
        return pa.array([()] * len(texts), MAP)
    return pa.array([_context(text) for text in texts.to_pylist()], MAP)


def _arguments(table: pa.Table, messages: Sequence[bytes]) -> tuple[Column, Column]:
    encoding = _struct(table, "properties").field("body_encoding")
    compression = _struct(table, "headers").field("compression")
    usual = (
        _all(pc.equal(encoding, "base64"))
        and _all(pc.equal(table.column("content-type"), "application/json"))
        and _all(pc.equal(table.column("content-encoding"), "utf-8"))
        and compression.null_count == len(messages)
    )
    args: list[str | None] = []
    kwargs: list[str | None] = []
    for place, body in enumerate(table.column("body").to_pylist()):
        try:
            text = a2b_base64(body).decode() if usual else ""
            end = _scan(text, 1)[1]
            start = end + 2
            last = _scan(text, start)[1]
            if text[:2] != "[[" or text[end : start + 1] != ", {" or text[last:] != _REST:
                raise ValueError("not Celery's default form")
            args.append(text[1:end])
            kwargs.append(text[start:last])
        except (ValueError, TypeError, StopIteration, IndexError, RecursionError):
            one, other = _arguments_of(json.loads(messages[place]))
            args.append(one)
            kwargs.append(other)
    return pa.array(args, TEXT), pa.array(kwargs, TEXT)


# -- parsed by Python ----------------------------------------------------------------------------


def _arguments_of(message: Mapping[str, Any]) -> tuple[str | None, str | None]:
    try:
        args, kwargs, _ = body_of(message)
        return text_of(dumps(args)), text_of(dumps(kwargs))
    except Exception:  # decoding a broken body may raise anything
        return None, None


def _context(text: Any) -> list[tuple[str, str | None]]:
    try:
        values = json.loads(text)
        return [(str(text_of(name)), text_of(value)) for name, value in values.items()]
    except (ValueError, TypeError, AttributeError, RecursionError):
        return []


def time_of(text: Any) -> datetime | None:
    """Return an ISO 8601 time, None if it cannot be read."""
    if not isinstance(text, str):
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        try:
            # In milliseconds; reads forms that Python 3.10 does not.
            return datetime.fromtimestamp(due_of_eta(text).ms / 1000, timezone.utc)
        except (InvalidETA, ValueError, OverflowError, OSError):
            return None
    try:
        return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).astimezone(
            timezone.utc
        )
    except OverflowError:
        return None
