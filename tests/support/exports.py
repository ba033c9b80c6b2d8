"""Write and read export files in memory."""

from __future__ import annotations

import io
from typing import Any

from celery_delayq.transfer import jsonl
from celery_delayq.transfer.export_format import FORMAT_VERSION, Header, RowKind

HEADER = Header(FORMAT_VERSION, "2030-01-31T09:00:00+00:00", "localhost:6379/0", {}, 1)


def written(kind: RowKind, *rows: Any) -> bytes:
    """Return a file with these rows."""
    file = io.BytesIO()
    with jsonl.writing(file, kind) as target:
        target.begin(HEADER)
        target.write(rows)
        target.end(len(rows), 0)
    return file.getvalue()


def read(kind: RowKind, data: bytes) -> list[tuple[int, Any]]:
    """Return the rows of a file, with their line numbers."""
    with jsonl.reading(io.BytesIO(data), kind) as lines:
        return [*lines]
