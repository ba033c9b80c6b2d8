"""Imports periodic entries that ``delayq periodic list --json`` has exported.

Each line is ``as_dict()`` of a :class:`~celery_delayq.periodic.entries.Periodic` or an
:class:`~celery_delayq.periodic.entries.UnreadableEntry`. For an entry in the code of this app,
only the state is imported, such as whether it is paused. Its definition comes from the code. All
other entries are imported unchanged: those that calls have added, and those in the code of other
apps.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from datetime import MAXYEAR, datetime
from functools import partial
from pathlib import Path
from typing import Any

from celery import Celery

from celery_delayq.errors import ConfigError, DelayQError
from celery_delayq.periodic.code_entries import source_of
from celery_delayq.periodic.definition import API_SOURCE, Definition
from celery_delayq.periodic.importers import FoundEntry, code_of, found_by
from celery_delayq.periodic.serialization import dumps_form
from celery_delayq.periodic.wall_clock import ms_of_datetime
from celery_delayq.utils import foreign
from celery_delayq.utils.credentials import path_of

#: Fields of the state. All other fields are fields of the definition.
_STATE_FIELDS = (
    *("when", "status", "next", "since", "last_run_at", "total_run_count", "manual_runs"),
    *("problem", "paused"),  # only of entries that the exporting process could not read
)


def entries(app: Celery, path: str | Path) -> Iterator[FoundEntry]:
    """Read exported entries, one per line.

    Parameters
    ----------
    path : str | Path
        A file, or ``-`` for standard input.

    Raises
    ------
    ConfigError
        The file cannot be read.
    """
    try:
        place = path_of(path, "a file or '-'", ConfigError)
        text = sys.stdin.read() if str(path) == "-" else place.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path}: expected the output of `periodic list --json`, {exc}") from exc
    own, code = source_of(app), code_of(app)
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    return (found_by(partial(_read, line, own, code), f"line {number}") for number, line in lines)


def _read(
    line: str, own: str, code: Mapping[str, Definition | DelayQError], found: FoundEntry
) -> None:
    with foreign.record_errors("line of `periodic list --json`"):
        data: dict[str, Any] = foreign.loads(line)
        found.name = name = _name(data.pop("name"))
        state_fields = {field: data.pop(field, None) for field in _STATE_FIELDS}
        in_code = data.get("source", API_SOURCE) == own
        if in_code and name not in code:
            found.problem, found.over = "it is not in the code any more", True
            return
        text = json.dumps(data)
        definition = None if in_code else Definition.loads(name, text)
        next, last_run_at, since = (
            _moment(state_fields[field]) for field in ("next", "last_run_at", "since")
        )
        # Manual runs do not count for max_runs. They are not imported.
        found.total_run_count = _count(state_fields["total_run_count"], state_fields["manual_runs"])
        found.definition, found.as_is = definition, not in_code
        found.next, found.last_run_at, found.since = next, last_run_at, since
        found.as_listed = not in_code or _has_same_schedule(code[name], name, text)
        found.enabled = state_fields["status"] != "paused" and not state_fields["paused"]


def _name(given: Any) -> str:
    if not isinstance(given, str):
        raise TypeError(f"name={given!r}: expected a text")
    given.encode()  # refuse a lone surrogate, which cannot be printed
    return given


def _has_same_schedule(code: Definition | DelayQError, name: str, text: str) -> bool:
    """Return whether the schedule in the code is the same as the exported one."""
    if not isinstance(code, Definition):
        return False
    try:
        then = Definition.loads(name, text)
    except DelayQError:
        return False
    when = (dumps_form(then.schedule), then.timezone, then.start)
    return when == (dumps_form(code.schedule), code.timezone, code.start)


def _count(total: Any, manual: Any) -> int:
    count = int(total or 0) - int(manual or 0)
    if count < 0:
        raise ValueError(f"total_run_count={total!r}: expected a number from 0")
    return count


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    moment = datetime.fromisoformat(text)
    # Check the year first: conversion to local time may leave the range of datetime.
    if moment.year == MAXYEAR or ms_of_datetime(moment.astimezone()) < 0:
        raise ValueError(f"{text!r}: expected a time from 1970 on, and before the year {MAXYEAR}")
    return moment.astimezone()
