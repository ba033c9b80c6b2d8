"""Refused rows: the job fails, or they are written to Parquet files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem, FileType

from celery_delayq.errors import ConfigError, DelayQError
from celery_delayq.utils.credentials import check_folder

#: The column with the reason.
ERROR_COLUMN = "_error"

#: The scheme of a URL. A single character is a drive of Windows.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")

#: Most rows that an error message shows.
_MAX_SHOWN_ROWS = 5


class RowsRefused(DelayQError):
    """Rows cannot be scheduled. With ``refused=<folder>`` the job writes such rows to a folder."""


class Refusals:
    """The refused rows of one Spark task.

    Parameters
    ----------
    folder : str | None
        Folder for files until the job is committed; None: the job has to fail.
    name : str
        Name of the file, unique for each attempt.
    only_count : bool
        Only count refused rows.
    """

    def __init__(self, folder: str | None, name: str, only_count: bool = False) -> None:
        self._folder = folder
        self._name = name
        self._only_count = only_count
        self._writer: Any = None
        self.count = 0
        #: Why the first row was refused.
        self.why = ""
        #: The first refused rows with their reasons.
        self.shown: list[str] = []

    def __enter__(self) -> Refusals:
        return self

    def __exit__(self, *error: object) -> None:
        if self._writer is not None:
            self._writer.close()

    @property
    def file(self) -> str | None:
        """The name of the file, or None."""
        return None if self._writer is None else self._name

    def add(self, batch: pa.RecordBatch, reasons: dict[int, str]) -> None:
        """Write the refused rows of a batch. *reasons* has the reason by the index of a row.

        Raises
        ------
        RowsRefused
            The job has to fail.
        """
        if not reasons:
            return
        self.count += len(reasons)
        self.why = self.why or next(iter(reasons.values()))
        if self._only_count:
            return
        refused = batch.take(pa.array(reasons))
        if ERROR_COLUMN in refused.schema.names:  # they were refused before
            refused = refused.drop_columns([ERROR_COLUMN])
        some = refused.slice(0, _MAX_SHOWN_ROWS - len(self.shown))
        for cells, reason in zip(_cells(some), reasons.values(), strict=False):
            self.shown.append(f"{reason} in {_short(cells)}")
        if self._folder is None:
            raise RowsRefused(
                f"{self.count} row(s) cannot be scheduled: {'; '.join(self.shown)}. With the "
                "option refused='<folder>' such rows go to Parquet files there, and the others "
                "are scheduled"
            )
        table = pa.Table.from_batches([refused]).append_column(
            ERROR_COLUMN, pa.array(reasons.values(), pa.string())
        )
        if self._writer is None:
            files, path = _at(self._folder)
            files.create_dir(path)
            self._writer = pq.ParquetWriter(f"{path}/{self._name}", table.schema, filesystem=files)
        self._writer.write_table(table)


def keep(folder: str, pending: str, names: list[str]) -> None:
    """Move the files of committed Spark tasks to a folder, and remove all other files."""
    files, target = _at(folder)
    source = _at(pending)[1]
    if names:
        files.create_dir(target)
    for name in names:
        if files.get_file_info(f"{target}/{name}").type == FileType.NotFound:
            files.move(f"{source}/{name}", f"{target}/{name}")
    drop(pending)


def drop(pending: str) -> None:
    """Remove the files of Spark tasks without a commit."""
    files, path = _at(pending)
    if files.get_file_info(path).type != FileType.NotFound:
        files.delete_dir(path)


def check(folder: str) -> None:
    """Raise :class:`ConfigError` if the folder is no valid place for files."""
    check_folder(folder)
    try:
        _at(folder)
    except (pa.ArrowException, OSError) as exc:
        raise ConfigError(
            f"refused={folder!r}: expected a path, or a URL such as s3a://bucket/folder, that all "
            f"machines share: {exc}"
        ) from exc


def _at(folder: str) -> tuple[Any, str]:
    if _SCHEME.match(folder):
        folder = folder.replace("s3a:", "s3:", 1)  # Arrow has another name for Hadoop's s3a
    else:
        folder = str(Path(folder).absolute())
    files, path = FileSystem.from_uri(folder)
    return files, str(path)


def _cells(rows: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    columns = [_values(column) for column in rows.columns]
    for cells in zip(*columns, strict=True):
        yield dict(zip(rows.schema.names, cells, strict=True))


def _values(column: Any) -> list[Any]:
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except (ValueError, OverflowError, TypeError):  # such as times that Python cannot represent
        try:
            return column.cast(pa.string()).to_pylist()  # type: ignore[no-any-return]
        except (pa.ArrowException, UnicodeDecodeError):
            return [f"<{column.type}>"] * len(column)


def _short(cells: dict[str, Any]) -> str:
    text = repr(cells)
    return text if len(text) <= 200 else f"{text[:200]}…"
