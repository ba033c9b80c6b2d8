"""Add finished runs to the history without workers."""

from __future__ import annotations

from typing import Any

from celery_delayq.model.history import RunRecord

_RUN = RunRecord("", "tasks.add", "celery", "celery@one", None, None, None, 0, "SUCCESS", 0, 1)


def finished(id: str, ended: int, **fields: Any) -> bytes:
    """Return a run that ended at *ended* (ms since 1970); *fields* as in `RunRecord`."""
    return _RUN._replace(id=id, ended=ended, **fields).pack()


def numbered(number: int, start: int = 0) -> list[bytes]:
    """Return runs of two queues, some with a due."""
    return [
        finished(
            f"id {n}", 1_000 * n + 1, started=1_000 * n, queue="q" if n % 2 else "celery",
            due=None if n % 3 else 5_000,
        )
        for n in range(start, start + number)
    ]  # fmt: skip
