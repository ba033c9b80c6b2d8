"""Entries as ``delayq periodic list --json`` has told them: a backup, or those of another Redis."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from celery import Celery

from celery_delayq.definitions import Definition
from celery_delayq.errors import ConfigError, DelayQError
from celery_delayq.takeover import Found

#: What is told of how an entry stands, and not of what it is.
_STANDING = ("when", "status", "next", "since", "last_run_at", "total_run_count")


def entries(app: Celery, path: str | Path) -> Iterator[Found]:  # noqa: ARG001 - as of other sources
    """Read what was told, a line for each.

    Parameters
    ----------
    path : str | Path
        ``-`` is standard input.

    Raises
    ------
    ConfigError
        There is no such file.
    """
    try:
        text = sys.stdin.read() if str(path) == "-" else Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path}: expected what `periodic list --json` has told, {exc}") from exc
    return _found(text.splitlines())


def _found(lines: Iterable[str]) -> Iterator[Found]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        name = f"line {number}"
        try:
            data: dict[str, Any] = json.loads(line)
            name = data.pop("name")
            told = {what: data.pop(what, None) for what in _STANDING}
            yield Found(
                name=name,
                definition=Definition.loads(name, json.dumps(data)),
                last_run_at=_moment(told["last_run_at"]),
                since=_moment(told["since"]),
                total_run_count=int(told["total_run_count"] or 0),
                enabled=told["status"] != "paused",
            )
        except DelayQError as exc:
            yield Found(name=name, problem=str(exc))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
            yield Found(name=name, problem=f"expected a line of `periodic list --json`: {exc!r}")


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text).astimezone()
