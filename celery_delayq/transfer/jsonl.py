"""The schedule, or dead letters, in a file of JSON Lines.

The first line is a header. Then each entry has one line. The last line contains the number of
entries, so that a truncated file is detected::

    {"format": "celery_delayq.schedule", "version": 1, "made": "2030-01-31T09:00:00+00:00", …}
    {"queue": "mail", "id": "…", "task": "shop.remind", "due": "…", "due_ms": …, "step": 0,
     "message_id": "…", "message": "{\\"properties\\": …}"}
    {"format": "celery_delayq.schedule", "end": 1}

The message is a text and not an object, because a message must be restored byte for byte. JSON
tools may change spaces, the order of keys and large numbers of an object.
"""

from __future__ import annotations

import codecs
import gzip
import json
import os
import sys
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from celery_delayq.errors import InvalidPlace, TransferError
from celery_delayq.transfer.export_format import (
    ExportRow,
    FileOrUrl,
    Header,
    ParsedLines,
    RowKind,
    check_version,
    not_json,
)
from celery_delayq.utils import message_json
from celery_delayq.utils.credentials import path_of


@dataclass
class JsonLinesWriter:
    """Writes to an open file."""

    file: BinaryIO
    kind: RowKind

    def begin(self, header: Header) -> None:
        """Write the header."""
        self.file.write(_line({"format": self.kind.format, **header._asdict()}))

    def write(self, rows: Sequence[ExportRow]) -> None:
        """Write rows, one per line."""
        self.file.write(b"".join([_line(row.fields()) for row in rows]))

    def end(self, entries: int, _left_out: int) -> int:
        """Write the number of rows. Return 0: no rows of other exports are removed."""
        self.file.write(_line({"format": self.kind.format, "end": entries}))
        self.file.flush()
        return 0


@contextmanager
def writing(target: FileOrUrl, kind: RowKind) -> Iterator[JsonLinesWriter]:
    """Open a file to write to. It appears when it is complete; after an error it is unchanged.

    Only the owner may read a new file, because it contains arguments of tasks.
    """
    place = sys.stdout.buffer if target == "-" else target
    if not isinstance(place, (str, os.PathLike)):
        yield JsonLinesWriter(place, kind)
        return
    path = _path(place).resolve()  # keeps a symbolic link
    if path.exists() and not path.is_file():
        with path.open("wb") as device:
            yield JsonLinesWriter(device, kind)
        return
    if not path.parent.is_dir():  # the system's error would name the temporary file
        raise TransferError(f"{path.parent}: there is no such folder")
    handle, name = tempfile.mkstemp(".part", f".{path.name}.", path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            if path.exists():
                os.fchmod(handle, path.stat().st_mode & 0o777)
            packs = path.suffix == ".gz"
            with gzip.open(file, "wb", compresslevel=5) if packs else nullcontext(file) as out:
                yield JsonLinesWriter(cast(BinaryIO, out), kind)
            file.flush()
            os.fsync(handle)
        Path(name).replace(path)
    finally:
        with suppress(FileNotFoundError):
            Path(name).unlink()


@contextmanager
def reading(source: FileOrUrl, *kinds: RowKind) -> Iterator[ParsedLines]:
    """Open a file to read from; see :func:`read_lines`."""
    place = sys.stdin.buffer if source == "-" else source
    if not isinstance(place, (str, os.PathLike)):
        yield read_lines(place, *kinds)
    else:
        path = _path(place)
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield read_lines(file, *kinds)


def _path(given: str | os.PathLike[str]) -> Path:
    return path_of(given, "a path, '-', sqlite:///path or postgresql://…", InvalidPlace)


def read_lines(lines: Iterable[bytes], *kinds: RowKind) -> ParsedLines:
    """Yield each non-empty line, parsed, with its number.

    A file may contain several exports of these kinds, and lines without a header, which are of the
    first kind or of the kind of the last header. A header needs a last line.
    """
    kind, by_format = kinds[0], {each.format: each for each in kinds}
    expected = " or ".join(map(repr, by_format))
    number, open_since, empty = 0, 0, True
    for number, line in enumerate(_until_damage(lines), 1):
        if not line.strip():
            continue
        empty = False
        if isinstance(line, str):
            yield number, line
            continue
        try:
            fields = message_json.decode_plain(line.removeprefix(codecs.BOM_UTF8))
            if not isinstance(fields, dict) or "format" not in fields:
                yield number, kind.row.of_fields(fields)
            elif str(fields["format"]) not in by_format:
                yield number, f"format {str(fields['format'])[:80]!r}: expected {expected}"
            elif "end" in fields:
                open_since = 0
            else:
                check_version(fields.get("version"))
                if open_since:
                    yield number, _cut_off(open_since)
                open_since, kind = number, by_format[fields["format"]]
                yield number, Header._make(map(fields.get, Header._fields))
        except (json.JSONDecodeError, RecursionError) as exc:
            yield number, not_json(exc)
        except ValueError as exc:
            yield number, str(exc)
    if open_since:
        yield number + 1, _cut_off(open_since)
    elif empty:  # such as a pipe whose writer failed
        yield number + 1, "the file is empty, it has no header"


def _until_damage(lines: Iterable[bytes]) -> Iterator[bytes | str]:
    """Yield lines. If a compressed file is damaged, the reason comes as the last item."""
    try:
        yield from lines
    except (EOFError, gzip.BadGzipFile, zlib.error) as exc:
        yield f"the file is damaged from here on ({exc})"


def _cut_off(since: int) -> str:
    return f"the export that begins in line {since} has no last line: it was cut off"


def _line(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields).encode() + b"\n"
