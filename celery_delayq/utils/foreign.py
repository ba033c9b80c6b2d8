"""Reads what others wrote: anybody may put anything into a broker. No I/O.

Whatever is wrong, one class is raised. ``tests/unit/project/test_foreign_bytes.py`` finds each
place that reads such bytes in another way.
"""

from __future__ import annotations

import json
import struct
import zlib
from lzma import LZMAError
from typing import Any

from celery_delayq.errors import DelayQError, RecordError

#: What Python raises where a value is not as the code that reads it expects.
FOREIGN_ERRORS = (
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)

#: What reading raises beside it: binary formats, and dates (``OSError``).
_FORMAT_ERRORS = (struct.error, zlib.error, LZMAError, EOFError, OSError)


class reading:  # noqa: N801 - a context manager, like contextlib.suppress
    """A context that raises RecordError for anything that cannot be read; for code without I/O.

    Parameters
    ----------
    what : str
        What is read, for the error.
    """

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: Any, exc: BaseException | None, _traceback: Any) -> None:
        if isinstance(exc, (*FOREIGN_ERRORS, *_FORMAT_ERRORS)) and not isinstance(exc, DelayQError):
            raise RecordError(f"unreadable {self._what}: {type(exc).__name__}: {exc}") from exc


def loads(data: bytes | str, **options: Any) -> Any:
    """Return a value of JSON, whose bytes are UTF-8; *options* are those of :func:`json.loads`."""
    with reading("JSON"):
        # Of bytes json would have to guess the encoding.
        return json.loads(data if isinstance(data, str) else data.decode(), **options)


def whole(text: bytes) -> int | None:
    """Return a whole number as ``include/clock.lua`` reads it; None for anything else."""
    return int(text) if len(text) <= 15 and text.removeprefix(b"-").isdigit() else None
