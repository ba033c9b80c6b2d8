"""Parses task messages into columns. No I/O."""

from __future__ import annotations

import json
from binascii import a2b_base64
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

from kombu.utils.json import dumps

from celery_delayq.model.canvas import group_of
from celery_delayq.model.envelope import own_of, parse_iso, unique_key
from celery_delayq.model.payload import body_of
from celery_delayq.utils import message_json

#: The headers that Celery writes. All other headers come from the caller.
CELERY_HEADERS = frozenset(
    {
        *("lang", "task", "id", "shadow", "eta", "expires", "group", "group_index", "retries"),
        *("timelimit", "root_id", "parent_id", "argsrepr", "kwargsrepr", "origin", "compression"),
        *("ignore_result", "replaced_task_nesting", "stamped_headers", "stamps"),
    }
)

_MAX_INT = 2**31 - 1

#: Columns that are headers of the same name.
_TEXT_COLUMNS = ("id", "task", "root_id", "parent_id", "origin")

#: The encoding of bodies in Celery's default form, and the end of such bodies.
_USUAL_ENCODING = ("base64", "application/json", "utf-8", None)
_USUAL_BODY_END = ', {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'

_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


def read(data: bytes, with_arguments: bool = True) -> dict[str, Any] | None:
    """Return the values of all columns of a message, None if it is no task message.

    Parameters
    ----------
    with_arguments : bool
        Also read ``args`` and ``kwargs``, which takes as long as all other columns together.
    """
    try:
        message = message_json.decode_plain(data)
        headers, properties = message["headers"], message["properties"]
        own = own_of(properties)
        if not isinstance(headers, Mapping) or headers["id"] is None:
            return None
        retries = headers.get("retries")
        row: dict[str, Any] = {name: text_of(headers.get(name)) for name in _TEXT_COLUMNS}
        row |= {
            "eta": time_of(own.get("eta")),
            "unique_key": text_of(unique_key(own)[1:] or None),
            "retries": retries if type(retries) is int and abs(retries) <= _MAX_INT else None,
            "expires": time_of(headers.get("expires")),
            "group_id": text_of(group_of(headers, own) or None),
            "headers": [
                (str(text_of(name)), text_of(headers[name]))
                for name in sorted(headers.keys() - CELERY_HEADERS)
                if headers[name] is not None
            ],
            "context": _context(own["context"]) if "context" in own else [],
        }
        if with_arguments:
            row["args"], row["kwargs"] = _arguments(message)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    return row


def text_of(value: Any) -> str | None:
    """Return a value as text that Spark can store: text unchanged, other values as JSON."""
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value)
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def name_of(data: bytes) -> str:
    """Return the name of an entry or a process as text that Spark can store."""
    return data.decode("utf-8", "backslashreplace")


def _arguments(message: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return positional and keyword arguments as JSON.

    From a body in Celery's default form, their text is cut out: decoding the body takes longer.
    """
    how = (
        message["properties"].get("body_encoding"),
        message.get("content-type"),
        message.get("content-encoding"),
        message["headers"].get("compression"),
    )
    with suppress(ValueError, TypeError, StopIteration, IndexError, RecursionError):
        if how == _USUAL_ENCODING:
            text = a2b_base64(message["body"]).decode()
            end = _scan(text, 1)[1]
            kwargs_end = _scan(text, end + 2)[1]
            if (text[:2], text[end : end + 3], text[kwargs_end:]) == ("[[", ", {", _USUAL_BODY_END):
                return text[1:end], text[end + 2 : kwargs_end]
    try:
        args, kwargs, _ = body_of(message)
        return text_of(dumps(args)), text_of(dumps(kwargs))
    except Exception:  # decoding a broken body may raise any error
        return None, None


def _context(text: Any) -> list[tuple[str, str | None]]:
    try:
        values = json.loads(text)
        return [(str(text_of(name)), text_of(value)) for name, value in values.items()]
    except (ValueError, TypeError, AttributeError, RecursionError):
        return []


def time_of(text: Any) -> datetime | None:
    """Return an ISO 8601 time in UTC, None if it cannot be read."""
    try:
        found = parse_iso(text)
        aware = found if found.tzinfo else found.replace(tzinfo=timezone.utc)
        return aware.astimezone(timezone.utc)
    except (ValueError, TypeError, OverflowError):
        return None
