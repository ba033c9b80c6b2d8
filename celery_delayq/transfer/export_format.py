"""The export format: header, rows, and helpers for readers and writers. No I/O."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any, BinaryIO, NamedTuple, Protocol, TypeGuard, TypeVar

from celery_delayq.errors import RecordError, TransferError
from celery_delayq.model.names import Renames
from celery_delayq.transfer.results import Imported
from celery_delayq.utils.portions import portions

#: The version of the format in files and databases. A reader accepts its own and older versions.
FORMAT_VERSION = 1

#: Most rows in one round trip.
PAGE_ROWS = 500

#: A path, ``"-"`` for stdin or stdout, a file opened for bytes, or the URL of a database.
FileOrUrl = str | os.PathLike[str] | BinaryIO


class Header(NamedTuple):
    """The first line of an export; *about* is the approximate number of rows.

    Of a header that was read from a file, only the version is checked.
    """

    version: int
    made: str
    server: str
    filter: Mapping[str, Any]
    about: int | None


class ExportRow(Protocol):
    """An entry or a dead letter."""

    @property
    def queue(self) -> str:
        """The name of the queue."""

    @property
    def size(self) -> int:
        """Approximate size in a call, in bytes."""

    def fields(self) -> dict[str, Any]:
        """Return the fields of a line in a file."""

    @classmethod
    def of_fields(cls, fields: Any) -> ExportRow:
        """Return the row of the fields of a line; raise ``ValueError`` if they are invalid."""

    def is_meant(self, filter: Any, renames: Renames) -> bool:
        """Return whether the row matches a filter of its kind, maybe by a former name."""


class RowKind(NamedTuple):
    """A kind of row (entries or dead letters), and its names in files and errors.

    Attributes
    ----------
    format : str
        The value of ``format`` in the first and the last line of a file.
    noun : str
        The noun in the plural.
    row : type[ExportRow]
        The class of the rows.
    """

    format: str
    noun: str
    row: type[ExportRow]


#: A parsed line or database row: a :class:`Header`, an :class:`ExportRow`, or a text with the
#: reason why it cannot be read.
Parsed = Any

#: Parsed lines with their numbers.
ParsedLines = Iterator[tuple[int, Parsed]]

R = TypeVar("R", bound=ExportRow)


def is_url(place: object) -> TypeGuard[str]:
    """Return whether *place* is the URL of a database."""
    return isinstance(place, str) and "://" in place


def meant_rows(
    lines: ParsedLines, report: Imported, filter: Any, renames: Renames
) -> Iterator[list[Any]]:
    """Yield pages of rows that match a filter. The report counts all other rows."""
    for page in portions(lines, PAGE_ROWS, lambda line: getattr(line[1], "size", 0)):
        yield meant_of(page, report, filter, renames)


def meant_of(
    page: Iterable[tuple[int, Parsed]], report: Imported, filter: Any, renames: Renames
) -> list[Any]:
    """Return the rows of a page that match a filter. The report counts all other rows."""
    rows, is_everything = [], filter.is_everything
    for number, parsed in page:
        if isinstance(parsed, Header):
            if type(parsed.about) is int:
                report.total = (report.total or 0) + parsed.about
        elif isinstance(parsed, str):
            report.refuse(number, parsed)
        elif is_everything or parsed.is_meant(filter, renames):
            rows.append(parsed)
        else:
            report.outcomes["filtered"] += 1
    return rows


def by_queue(rows: Iterable[R], most: int) -> Iterator[tuple[str, list[R]]]:
    """Yield batches of rows of one queue, each small enough for one script call."""
    found: dict[str, list[R]] = defaultdict(list)
    for row in rows:
        found[row.queue].append(row)
    for queue, those in found.items():
        for some in portions(those, most, lambda row: row.size):
            yield queue, some


def shown_filter(filter: Any) -> dict[str, Any]:
    """Return the fields of a filter that are set, as JSON types."""
    given = {each.name: getattr(filter, each.name) for each in fields(filter)}
    return {
        name: {key: str(each) for key, each in value.items()}
        if isinstance(value, Mapping)
        else value.isoformat()
        if isinstance(value, datetime)
        else value
        for name, value in given.items()
        if value is not None and value is not False
    }


def check_fields(given: Any, **types: type[str | int]) -> None:
    """Raise :class:`RecordError` unless a row is an object whose fields have the given types."""
    if not isinstance(given, dict):
        raise RecordError(f"expected an object, got {type(given).__name__}")
    for name, kind in types.items():
        if type(given.get(name)) is not kind:
            got = type(given[name]).__name__ if name in given else "nothing"
            wanted = "a text" if kind is str else "a whole number"
            raise RecordError(f"{name}: expected {wanted}, got {got}")


def check_version(version: Any) -> None:
    """Check that this release can read an export.

    Raises
    ------
    TransferError
        A later release wrote the export.
    """
    if type(version) is not int or not 1 <= version <= FORMAT_VERSION:
        raise TransferError(
            f"version {version!r} of the format: this version of the package reads "
            f"{FORMAT_VERSION} and earlier"
        )


def not_json(exc: ValueError | RecursionError) -> str:
    """Return why a text is not JSON, without the line number of the error."""
    if isinstance(exc, json.JSONDecodeError):
        return f"no JSON: {exc.msg} at character {exc.pos + 1}"
    return f"no JSON: {exc}"
