"""Rows that were refused: the job fails, or they go to Parquet files of their own."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem, FileType

from celery_delayq.errors import DelayQError

#: The column with the reason.
ERROR = "_error"

#: Rows of which a message tells.
_SHOWN = 5


class RowsRefused(DelayQError):
    """Rows cannot be scheduled; ``refused=<folder>`` keeps them apart and goes on."""


class Refusals:
    """What was refused in one task of Spark.

    Parameters
    ----------
    folder : str | None
        Where files go until the job is committed, None where the job is to fail.
    name : str
        Of the file, another one for each attempt.
    """

    def __init__(self, folder: str | None, name: str) -> None:
        self._folder = folder
        self._name = name
        self._writer: Any = None
        self.count = 0
        #: The first ones, with their reasons.
        self.shown: list[str] = []

    def __enter__(self) -> Refusals:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._writer is not None:
            self._writer.close()

    @property
    def file(self) -> str | None:
        """The name of the file, None where there is none."""
        return None if self._writer is None else self._name

    def add(self, batch: pa.RecordBatch, reasons: dict[int, str]) -> None:
        """Keep rows of a batch, by their place, with the reasons.

        Raises
        ------
        RowsRefused
            The job is to fail.
        """
        if not reasons:
            return
        self.count += len(reasons)
        refused = batch.take(pa.array(reasons))
        for cells, reason in zip(refused.to_pylist(), reasons.values(), strict=True):
            if len(self.shown) == _SHOWN:
                break
            self.shown.append(f"{reason} in {_short(cells)}")
        if self._folder is None:
            raise RowsRefused(
                f"{self.count} row(s) cannot be scheduled: {'; '.join(self.shown)}. With the "
                "option refused='<folder>' such rows go to Parquet files there, and the others "
                "are scheduled"
            )
        table = pa.Table.from_batches([refused]).append_column(
            ERROR, pa.array(reasons.values(), pa.string())
        )
        if self._writer is None:
            files, path = _at(self._folder)
            files.create_dir(path)
            self._writer = pq.ParquetWriter(f"{path}/{self._name}", table.schema, filesystem=files)
        self._writer.write_table(table)


def keep(folder: str, pending: str, names: list[str]) -> None:
    """Move files of tasks that were committed to where they are looked for; drop the others."""
    files, to = _at(folder)
    source = _at(pending)[1]
    if names:
        files.create_dir(to)
    for name in names:
        if files.get_file_info(f"{to}/{name}").type == FileType.NotFound:
            files.move(f"{source}/{name}", f"{to}/{name}")
    drop(pending)


def drop(pending: str) -> None:
    """Remove files of tasks that were not committed."""
    files, path = _at(pending)
    if files.get_file_info(path).type != FileType.NotFound:
        files.delete_dir(path)


def _at(folder: str) -> tuple[Any, str]:
    if "://" not in folder:
        folder = str(Path(folder).absolute())
    files, path = FileSystem.from_uri(folder)
    return files, str(path)


def _short(cells: dict[str, Any]) -> str:
    text = repr(cells)
    return text if len(text) <= 200 else f"{text[:200]}…"
