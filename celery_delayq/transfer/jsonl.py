"""The schedule, or dead letters, in a file of JSON Lines.

A file begins with a line that tells what it is, has one line for each entry, and ends with a line
that tells how many there are, so that a file that was cut off is known::

    {"format": "celery_delayq.schedule", "version": 1, "made": "2030-01-31T09:00:00+00:00", …}
    {"queue": "mail", "id": "…", "task": "shop.remind", "due": "…", "due_ms": …, "step": 0,
     "message id": "…", "message": "{\\"properties\\": …}"}
    {"format": "celery_delayq.schedule", "end": 1}

The message is a text and not an object: it has to come back byte for byte, and any tool for JSON
may space an object anew, sort its keys or round its large numbers.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from celery_delayq.errors import TransferError
from celery_delayq.transfer.schedule_row import Header, Kind, Told, check_version, no_json
from celery_delayq.utils.credentials import path_of

#: A path, ``"-"`` for stdin or stdout, or a file that is open for bytes.
Place = str | os.PathLike[str] | BinaryIO


@dataclass
class _Lines:
    """A file that is open, or what is like one."""

    file: BinaryIO
    kind: Kind
    takes_nul = True

    def begin(self, header: Header) -> None:
        self.file.write(_line({"format": self.kind.format, **header._asdict()}))

    def write(self, rows: Sequence[Any]) -> None:
        self.file.write(b"".join([_line(self.kind.fields(row)) for row in rows]))

    def end(self, entries: int, _left_out: int) -> int:
        self.file.write(_line({"format": self.kind.format, "end": entries}))
        self.file.flush()
        return 0


@contextmanager
def writing(target: Place, kind: Kind) -> Iterator[_Lines]:
    """Open a file to write to. It appears when it is complete; after an error all is as it was.

    A new file is readable by its owner alone: arguments of tasks are in it.
    """
    if target == "-":
        yield _Lines(sys.stdout.buffer, kind)
        return
    if not isinstance(target, (str, os.PathLike)):
        yield _Lines(target, kind)
        return
    path = _path(target).resolve()  # a link stays one
    if path.exists() and not path.is_file():
        with path.open("wb") as device:
            yield _Lines(device, kind)
        return
    handle, name = tempfile.mkstemp(".part", f".{path.name}.", path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            if path.exists():
                os.fchmod(handle, path.stat().st_mode & 0o777)
            if path.suffix == ".gz":
                with gzip.open(file, "wb", compresslevel=5) as packed:
                    yield _Lines(cast(BinaryIO, packed), kind)
            else:
                yield _Lines(file, kind)
            file.flush()
            os.fsync(handle)
        Path(name).replace(path)
    finally:
        with suppress(FileNotFoundError):
            Path(name).unlink()


@contextmanager
def reading(source: Place, kind: Kind) -> Iterator[Iterator[tuple[int, Told]]]:
    """Open a file to read from."""
    if source == "-":
        yield read_lines(sys.stdin.buffer, kind)
    elif not isinstance(source, (str, os.PathLike)):
        yield read_lines(source, kind)
    else:
        path = _path(source)
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield read_lines(file, kind)


def _path(given: str | os.PathLike[str]) -> Path:
    return path_of(given, "a path, '-', sqlite:///path or postgresql://…", TransferError)


def read_lines(lines: Iterable[bytes], kind: Kind) -> Iterator[tuple[int, Told]]:
    """Yield the number of each line that says something, and what it says.

    Several exports may come one after another, and lines of them without the first and the last
    one; only where there is a first one there has to be a last one.
    """
    number, open_since, empty = 0, 0, True
    for number, line in enumerate(_until_damage(lines), 1):
        if isinstance(line, str):
            yield number, line
            empty = False
            continue
        if not line.strip():
            continue
        empty = False
        try:
            fields = json.loads(line.decode("utf-8-sig"))
            if not isinstance(fields, dict) or "format" not in fields:
                yield number, kind.row(fields)
            elif fields["format"] != kind.format:
                yield number, f"format {str(fields['format'])[:80]!r}: expected {kind.format!r}"
            elif "end" in fields:
                open_since = 0
            else:
                check_version(fields.get("version"))
                if open_since:
                    yield number, _cut_off(open_since)
                open_since = number
                yield number, _header(fields)
        except (json.JSONDecodeError, RecursionError) as exc:
            yield number, no_json(exc)
        except ValueError as exc:
            yield number, str(exc)
    if open_since:
        yield number + 1, _cut_off(open_since)
    elif empty:  # as a pipe leaves it when what should write to it has failed
        yield number + 1, "there is nothing in it, not even the first line of an export"


def _until_damage(lines: Iterable[bytes]) -> Iterator[bytes | str]:
    """Yield lines and, where a packed file cannot be unpacked any further, why."""
    try:
        yield from lines
    except (EOFError, gzip.BadGzipFile, zlib.error) as exc:
        yield f"the file is damaged from here on ({exc})"


def _header(fields: Mapping[str, Any]) -> Header:
    about = fields.get("about")
    return Header(
        fields["version"],
        str(fields.get("made")),
        str(fields.get("server")),
        {},
        about if type(about) is int else None,
    )


def _cut_off(since: int) -> str:
    return f"the export that begins in line {since} has no last line: it was cut off"


def _line(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields).encode() + b"\n"
