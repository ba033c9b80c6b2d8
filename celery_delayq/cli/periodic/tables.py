"""Periodic entries as tables and fields."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime

from rich.table import Table
from rich.text import Text

from celery_delayq.cli.screen import (
    WIDE,
    folded,
    id_width,
    new_table,
    schedule_text,
    time_text,
)
from celery_delayq.cli.text import distance, quoted, stamp
from celery_delayq.periodic.state import Periodic
from celery_delayq.periodic.unreadable import UnreadableEntry
from celery_delayq.utils.text import spelled

Entry = Periodic | UnreadableEntry

#: Fields that are times, beside the next and the last tick.
_TIMES = ("start", "end", "since")

_STYLES = {"on": "green", "paused": "yellow", "ended": "dim", "unreadable": "red"}


def entries_table(entries: Sequence[Entry], now: datetime, width: int) -> Table:
    """Return one row for each entry, in a table that fits *width* columns."""
    table = new_table()
    names = [quoted(entry.name) for entry in entries]
    wide = width >= WIDE
    fixed = id_width(names, width // 2 if wide else width)
    if wide:
        for title in ("name", "when", "task"):
            table.add_column(title, overflow="fold")
        for title in ("state", "next", ""):
            table.add_column(title, no_wrap=True)
        table.add_column("runs", justify="right", no_wrap=True)
        table.add_column("source", overflow="fold")
    else:
        table.add_column("name, when, next", overflow="fold", width=fixed)
        table.add_column("task, source, runs", overflow="fold")
    for entry, name in zip(entries, names, strict=True):
        shown, when = Text(folded(name, fixed)), Text(spelled(_when(entry)))
        task, source = Text(spelled(_task(entry))), Text(spelled(source_of(entry)))
        state = _state(entry)
        next_tick, away = "", ""
        tick = entry.next if isinstance(entry, Periodic) else None
        if tick is not None:
            next_tick = stamp(tick)
            away = distance((tick - now).total_seconds())
        runs = f"{entry.as_dict()['total_run_count']:,}"
        if wide:
            table.add_row(shown, when, task, state, next_tick, away, runs, source)
            continue
        what = task.append("\n").append(source).append(f"\n{away}{', ' if away else ''}{runs} runs")
        last = Text(next_tick) if next_tick else state
        first = shown.append("\n").append(when.plain, "dim").append("\n").append(last)
        table.add_row(first, what)
    return table


def _when(entry: Entry) -> str:
    """Return its schedule, or why it cannot be read."""
    if isinstance(entry, UnreadableEntry):
        return entry.problem
    zone = entry.definition.timezone
    return schedule_text(entry.definition.schedule) + ("" if zone is None else f", {zone}")


def _task(entry: Entry) -> str:
    if isinstance(entry, UnreadableEntry):
        return str(entry.data.get("task", "?"))
    return entry.definition.task


def source_of(entry: Entry) -> str:
    """Return the source of an entry, ``?`` if it cannot be read."""
    if isinstance(entry, UnreadableEntry):
        return "?" if entry.source is None else entry.source
    return entry.definition.source


def _state(entry: Entry) -> Text:
    paused = isinstance(entry, UnreadableEntry) and entry.paused
    return Text(entry.status + (", paused" if paused else ""), _STYLES[entry.status])


def entry_fields(entry: Entry, now: datetime) -> Iterator[tuple[str, Text]]:
    """Yield names and values of an entry."""
    values = entry.as_dict()
    yield "name", Text(quoted(entry.name))
    yield "state", _state(entry)
    yield "problem" if isinstance(entry, UnreadableEntry) else "when", Text(spelled(_when(entry)))
    yield "task", Text(spelled(_task(entry)))
    for title, what in (("next", "next"), ("last tick", "last_run_at")):
        if values[what] is not None:
            yield title, Text(time_text(datetime.fromisoformat(values[what]), now))
    yield "runs", Text(f"{values['total_run_count']:,}")
    yield "source", Text(spelled(source_of(entry)))
    shown = {"name", "source", "when", "task", "status", "next", "last_run_at", "total_run_count"}
    shown |= (
        {"problem", "paused"} if isinstance(entry, UnreadableEntry) else {"schedule", "timezone"}
    )
    for name, value in values.items():
        if name in _TIMES and value is not None:
            yield name, Text(time_text(datetime.fromisoformat(value), now))
        elif name not in shown:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            yield name.replace("_", " "), Text(spelled(text))
