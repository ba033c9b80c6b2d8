"""Periodic entries as tables and fields."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.text import Text

from celery_delayq.cli import screen
from celery_delayq.cli.items import ItemKind
from celery_delayq.cli.text import quoted, stamp
from celery_delayq.periodic.entries import Periodic, UnreadableEntry
from celery_delayq.utils.text import distance, spelled

Entry = Periodic | UnreadableEntry

#: Fields with times, except the next and the last tick.
_TIME_FIELDS = ("start", "end", "since")

_STYLES = {"on": "green", "paused": "yellow", "ended": "dim", "unreadable": "red"}


def _row(entry: Entry, name: str, now: datetime, is_wide: bool) -> Sequence[Text | str]:
    values = entry.as_dict()
    shown, when = Text(name), Text(spelled(_when(entry)))
    task, source = Text(_task(values)), Text(spelled(source_of(entry)))
    state = _state(entry)
    next_tick, away = "", ""
    if isinstance(entry, Periodic) and entry.next is not None:
        next_tick = stamp(entry.next)
        away = distance((entry.next - now).total_seconds())
    runs = f"{values['total_run_count']:,}"
    if is_wide:
        return shown, when, task, state, next_tick, away, runs, source
    what = task.append("\n").append(source).append(f"\n{away}{', ' if away else ''}{runs} runs")
    last = Text(next_tick) if next_tick else state
    first = shown.append("\n").append(when.plain, "dim").append("\n").append(last)
    return first, what


def _when(entry: Entry) -> str:
    """Return the schedule of an entry, or the reason why the entry cannot be read."""
    if isinstance(entry, UnreadableEntry):
        return entry.problem
    zone = entry.definition.timezone
    return screen.schedule_text(entry.definition.schedule) + ("" if zone is None else f", {zone}")


def source_of(entry: Entry) -> str:
    """Return the source of an entry; ``?`` if it cannot be read."""
    source = (entry if isinstance(entry, UnreadableEntry) else entry.definition).source
    return "?" if source is None else source


def _task(values: Mapping[str, Any]) -> str:
    return spelled(str(values.get("task", "?")))


def _state(entry: Entry) -> Text:
    paused = isinstance(entry, UnreadableEntry) and entry.paused
    return Text(entry.status + (", paused" if paused else ""), _STYLES[entry.status])


def _fields(entry: Entry) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of an entry's fields."""
    values = entry.as_dict()
    is_unreadable = isinstance(entry, UnreadableEntry)
    yield "name", quoted(entry.name)
    yield "state", _state(entry)
    yield "problem" if is_unreadable else "when", _when(entry)
    yield "task", _task(values)
    yield "next", _time(values["next"])
    yield "last tick", _time(values["last_run_at"])
    yield "runs", f"{values['total_run_count']:,}"
    yield "source", source_of(entry)
    shown = {"name", "source", "when", "task", "status", "next", "last_run_at", "total_run_count"}
    shown |= {"problem", "paused"} if is_unreadable else {"schedule", "timezone"}
    for name, value in values.items():
        if name in _TIME_FIELDS:
            yield name, _time(value)
        elif name not in shown:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            yield name.replace("_", " "), text


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


PERIODIC_ENTRIES = ItemKind(
    one="entry",
    many="entries",
    id_of=lambda entry: quoted(entry.name),
    columns=("name", "when", "task", "state", "next", "", "runs", "source"),
    narrow=("name, when, next", "task, source, runs"),
    row=_row,
    fields=_fields,
)
