"""Periodic entries as tables, or as JSON, and what is done with them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NamedTuple

import click
from rich.table import Table
from rich.text import Text

from celery_delayq.app import DelayQ
from celery_delayq.cli.base import Refused
from celery_delayq.cli.periodic_options import Asked, as_options
from celery_delayq.cli.screen import (
    WIDE,
    console_of,
    folded,
    id_width,
    new_table,
    note_unknown_task,
    now_of,
    print_fields,
    schedule_text,
    time_text,
)
from celery_delayq.cli.words import distance, number_of, quoted, spelled, stamp
from celery_delayq.errors import (
    ConfigError,
    InvalidSchedule,
    PeriodicExists,
    PeriodicUnknown,
    RecordError,
)
from celery_delayq.periodic.definition import API
from celery_delayq.periodic.state import Periodic
from celery_delayq.periodic.unreadable import UnreadableEntry

Entry = Periodic | UnreadableEntry

#: What is a moment of what is shown, beside the next and the last tick.
_MOMENTS = ("start", "end", "since")

_STYLES = {"on": "green", "paused": "yellow", "ended": "dim", "unreadable": "red"}


def show_all(
    ctx: click.Context,
    delayq: DelayQ,
    source: str | None,
    status: str | None,
    *,
    as_json: bool,
) -> None:
    """Print all entries, or those of a source and of a status."""
    entries = [
        entry
        for entry in delayq.periodic._all()
        if source in (None, _source(entry)) and status in (None, entry.status)
    ]
    if as_json:
        for entry in entries:
            print(json.dumps(entry.as_dict()))
        return
    console = console_of(ctx)
    if not entries:
        whose = "" if source is None else f" with the source {spelled(source)}"
        if status is not None:
            whose += f"{' and' if whose else ' with'} the status {status}"
        console.print(f"There are no periodic entries{whose}.", soft_wrap=True)
        return
    console.print(_table(entries, now_of(delayq), console.width))
    console.print(f"{number_of(len(entries), 'entry', 'entries')}.")


def _table(entries: Sequence[Entry], now: datetime, width: int) -> Table:
    table = new_table("")
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
        task, source = Text(spelled(_task(entry))), Text(spelled(_source(entry)))
        state = _state(entry)
        following, away = "", ""
        tick = entry.next if isinstance(entry, Periodic) else None
        if tick is not None:
            following = stamp(tick)
            away = distance((tick - now).total_seconds())
        runs = f"{entry.as_dict()['total_run_count']:,}"
        if wide:
            table.add_row(shown, when, task, state, following, away, runs, source)
            continue
        what = task.append("\n").append(source).append(f"\n{away}{', ' if away else ''}{runs} runs")
        last = Text(following) if following else state
        first = shown.append("\n").append(when.plain, "dim").append("\n").append(last)
        table.add_row(first, what)
    return table


def _when(entry: Entry) -> str:
    """Return when it ticks, or why that cannot be told."""
    if isinstance(entry, UnreadableEntry):
        return entry.problem
    zone = entry.definition.timezone
    return schedule_text(entry.definition.schedule) + ("" if zone is None else f", {zone}")


def _task(entry: Entry) -> str:
    if isinstance(entry, UnreadableEntry):
        return str(entry.data.get("task", "?"))
    return entry.definition.task


def _source(entry: Entry) -> str:
    if isinstance(entry, UnreadableEntry):
        return "?" if entry.source is None else entry.source
    return entry.definition.source


def _state(entry: Entry) -> Text:
    paused = isinstance(entry, UnreadableEntry) and entry.paused
    return Text(entry.status + (", paused" if paused else ""), _STYLES[entry.status])


def show_one(ctx: click.Context, delayq: DelayQ, name: str, *, as_json: bool) -> None:
    """Print an entry, also one that cannot be read (PeriodicUnknown)."""
    entry: Entry
    try:
        entry = _entry(delayq, name)
    except (RecordError, InvalidSchedule):
        found = [each for each in delayq.periodic.unreadable() if each.name == name]
        if not found:  # removed meanwhile
            raise
        entry = found[0]
    if as_json:
        print(json.dumps(entry.as_dict()))
        return
    _show(ctx, entry, now_of(delayq))


def _show(ctx: click.Context, entry: Entry, now: datetime) -> None:
    print_fields(console_of(ctx), _fields(entry, now))


def _fields(entry: Entry, now: datetime) -> Iterator[tuple[str, Text]]:
    """Yield what is known of an entry, as name and value."""
    told = entry.as_dict()
    yield "name", Text(quoted(entry.name))
    yield "state", _state(entry)
    yield "problem" if isinstance(entry, UnreadableEntry) else "when", Text(spelled(_when(entry)))
    yield "task", Text(spelled(_task(entry)))
    for title, what in (("next", "next"), ("last tick", "last_run_at")):
        if told[what] is not None:
            yield title, Text(time_text(datetime.fromisoformat(told[what]), now))
    yield "runs", Text(f"{told['total_run_count']:,}")
    yield "source", Text(spelled(_source(entry)))
    shown = {"name", "source", "when", "task", "status", "next", "last_run_at", "total_run_count"}
    shown |= (
        {"problem", "paused"} if isinstance(entry, UnreadableEntry) else {"schedule", "timezone"}
    )
    for name, value in told.items():
        if name in _MOMENTS and value is not None:
            yield name, Text(time_text(datetime.fromisoformat(value), now))
        elif name not in shown:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            yield name.replace("_", " "), Text(spelled(text))


def show_next(ctx: click.Context, delayq: DelayQ, name: str, count: int, *, as_json: bool) -> None:
    """Print the next ticks of an entry (PeriodicUnknown)."""
    ticks = delayq.periodic.next(name, count)
    if as_json:
        print(json.dumps({"ticks": [tick.isoformat() for tick in ticks]}))
        return
    console, now = console_of(ctx), now_of(delayq)
    for tick in ticks:
        console.print(Text(time_text(tick, now)), soft_wrap=True)
    if not ticks:
        entry = _entry(delayq, name)
        console.print(f"{quoted(name)} has no more ticks: it is {entry.status}.", soft_wrap=True)


def add(
    ctx: click.Context,
    delayq: DelayQ,
    name: str,
    task: str,
    asked: Asked,
    *,
    replace: bool,
    as_json: bool,
) -> None:
    """Add an entry and show it."""
    now = now_of(delayq)  # what is wrong with Redis, or the app, is not what was asked
    with _wrongly_asked():
        try:
            entry = delayq.periodic.add(
                name, asked.schedule, task, **asked.others, **asked.options, replace=replace
            )
        except PeriodicExists as exc:
            raise Refused(
                f"there is a periodic entry {quoted(name)} already: change it with `periodic "
                "update`, or say --replace"
            ) from exc
    note_unknown_task(delayq, task)
    _tell(ctx, entry, now, as_json=as_json)


def update(
    ctx: click.Context,
    delayq: DelayQ,
    name: str,
    task: str | None,
    asked: Asked,
    *,
    as_json: bool,
) -> None:
    """Change an entry and show it; None is what is unset."""
    entry, now = _entry(delayq, name), now_of(delayq)
    changes = dict(asked.others)
    if asked.schedule is not None:
        changes["schedule"] = asked.schedule
    if task is not None:
        changes["task"] = task
        note_unknown_task(delayq, task)
    if asked.options:
        options = {**entry.definition.options, **asked.options}
        changes["options"] = {what: each for what, each in options.items() if each is not None}
    with _wrongly_asked():
        entry = delayq.periodic.update(name, **changes)
    _tell(ctx, entry, now, as_json=as_json)


@contextmanager
def _wrongly_asked() -> Iterator[None]:
    """Tell as wrong use what cannot be of an entry that is asked for."""
    try:
        yield
    except ConfigError as exc:
        raise click.UsageError(spelled(as_options(str(exc)))) from exc


def _tell(ctx: click.Context, entry: Periodic, now: datetime, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(entry.as_dict()))
    else:
        _show(ctx, entry, now)


def remove(
    ctx: click.Context,
    delayq: DelayQ,
    names: Sequence[str],
    *,
    ended: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Remove entries; exits with 1 when one was not there, or somebody said no."""
    if ended:
        # One in code that comes back begins anew, with all its runs.
        names = [each.name for each in delayq.periodic.list(API) if each.status == "ended"]
        if not names and not as_json:
            click.echo("There are no entries that have ended.")
    if ended and names and not yes:
        if as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise click.UsageError("nobody can be asked here whether to do it: say --yes")
        if not click.confirm(f"Remove {number_of(len(names), 'entry', 'entries')}?"):
            click.echo("Nothing was changed.", err=True)
            raise click.exceptions.Exit(1)

    def one(name: str) -> Became:
        there = delayq.periodic.remove(name)
        return Became(there, "removed" if there else "unknown")

    _each(ctx, names, one, as_json=as_json)


def pause(ctx: click.Context, delayq: DelayQ, names: Sequence[str], *, as_json: bool) -> None:
    """Pause entries; exits with 1 when one is unknown."""

    def one(name: str) -> Became:
        entry = delayq.periodic.pause(name)
        return Became(True, "paused" if isinstance(entry, UnreadableEntry) else entry.status)

    _each(ctx, names, one, as_json=as_json)


def resume(ctx: click.Context, delayq: DelayQ, names: Sequence[str], *, as_json: bool) -> None:
    """Resume entries; exits with 1 when one is unknown."""

    def one(name: str) -> Became:
        entry = delayq.periodic.resume(name)
        more = {} if entry.next is None else {"next": entry.next.isoformat()}
        return Became(True, entry.status, more)

    _each(ctx, names, one, as_json=as_json)


def run_now(ctx: click.Context, delayq: DelayQ, names: Sequence[str], *, as_json: bool) -> None:
    """Run entries once more; exits with 1 when one was not run."""

    def one(name: str) -> Became:
        id = delayq.periodic.run_now(name)
        if id is None:
            return Became(False, "not sent: one runs, and may not overlap")
        return Became(True, "sent", {"id": id})

    _each(ctx, names, one, as_json=as_json)


class Became(NamedTuple):
    """What became of an entry, and what else there is to tell of it."""

    done: bool
    outcome: str
    more: Mapping[str, str] = {}


def _each(
    ctx: click.Context, names: Sequence[str], one: Callable[[str], Became], *, as_json: bool
) -> None:
    """Do something with each, and tell what became of it; exits with 1 when one was not done."""
    console = console_of(ctx)
    told: list[dict[str, Any]] = []
    try:
        for name in dict.fromkeys(names):
            try:
                became = one(name)
            except PeriodicUnknown:
                became = Became(False, "unknown")
            except (RecordError, InvalidSchedule) as exc:
                became = Became(False, f"failed: {spelled(str(exc))}")
            done = {"name": name, "done": became.done, "outcome": became.outcome}
            told.append({**done, **became.more})
            if not as_json:
                text = Text(became.outcome, "green" if became.done else "red")
                text.append(f"  {quoted(name)}", "default")
                for what, value in became.more.items():
                    shown = (
                        stamp(datetime.fromisoformat(value)) if what == "next" else quoted(value)
                    )
                    text.append(f"  {what} {shown}", "dim")
                console.print(text, soft_wrap=True)
    finally:  # what was done before an error is told all the same
        if as_json:
            print(json.dumps({"outcomes": told}))
    if not all(each["done"] for each in told):
        raise click.exceptions.Exit(1)


def _entry(delayq: DelayQ, name: str) -> Periodic:
    entry = delayq.periodic.get(name)
    if entry is None:
        raise PeriodicUnknown(f"there is no periodic entry {quoted(name)}")
    return entry
