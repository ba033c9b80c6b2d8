"""Reads data that other programs wrote into a broker. No I/O.

Each failure raises RecordError. ``tests/unit/project/test_foreign_bytes.py`` finds places that read
such data in another way.
"""

from __future__ import annotations

import json
import struct
import zlib
from lzma import LZMAError
from typing import Any

from celery_delayq.errors import DelayQError, RecordError

#: Errors of Python where a value is not as the code expects.
FOREIGN_ERRORS = (
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)

#: Further errors: of binary formats, and of dates (``OSError``).
_FORMAT_ERRORS = (struct.error, zlib.error, LZMAError, EOFError, OSError)
_READING_ERRORS = (*FOREIGN_ERRORS, *_FORMAT_ERRORS)


class record_errors:  # noqa: N801 - a context manager, like contextlib.suppress
    """A context that turns errors of reading into RecordError; for code without I/O.

    Parameters
    ----------
    what : str
        Name of the data, for the error message.
    """

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: Any, exc: BaseException | None, _traceback: Any) -> None:
        if exc is None:
            return
        if isinstance(exc, _READING_ERRORS) and not isinstance(exc, DelayQError):
            raise RecordError(f"unreadable {self._what}: {type(exc).__name__}: {exc}") from exc


def loads(data: bytes | str, **options: Any) -> Any:
    """Return a value of JSON in UTF-8; *options* are those of :func:`json.loads`."""
    with record_errors("JSON"):
        # json.loads would guess the encoding of bytes.
        return json.loads(data if isinstance(data, str) else data.decode(), **options)


def parse_integer(text: bytes) -> int | None:
    """Return an integer by the rule of ``include/clock.lua``, None for any other text."""
    return int(text) if len(text) <= 15 and text.removeprefix(b"-").isdigit() else None
