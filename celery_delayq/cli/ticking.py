"""Periodic entries as tables, or as JSON, and what is done with them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import click
from rich.table import Table
from rich.text import Text

from celery_delayq.app import DelayQ
from celery_delayq.cli.entries import WIDE, now_of
from celery_delayq.cli.periodic_options import Asked
from celery_delayq.cli.screen import console_of, new_table
from celery_delayq.cli.words import distance, local, number_of, quoted, spelled
from celery_delayq.errors import PeriodicUnknown
from celery_delayq.periodic import Periodic
from celery_delayq.schedule_forms import describe

_STYLES = {"on": "green", "paused": "yellow", "ended": "dim"}


def show_all(ctx: click.Context, delayq: DelayQ, source: str | None, *, as_json: bool) -> None:
    """Print all entries, or those of a source."""
    entries = delayq.periodic.list(source)
    if as_json:
        for entry in entries:
            print(json.dumps(entry.as_dict()))
        return
    console = console_of(ctx)
    if not entries:
        whose = "" if source is None else f" with the source {spelled(source)}"
        console.print(f"There are no periodic entries{whose}.", soft_wrap=True)
        return
    console.print(_table(entries, now_of(delayq), console.width))
    console.print(f"{number_of(len(entries), 'entry', 'entries')}.")


def _table(entries: Sequence[Periodic], now: datetime, width: int) -> Table:
    table = new_table("")
    wide = width >= WIDE
    if wide:
        for title in ("name", "when", "task"):
            table.add_column(title, overflow="fold")
        for title in ("state", "next", ""):
            table.add_column(title, no_wrap=True)
        table.add_column("runs", justify="right", no_wrap=True)
        table.add_column("source", overflow="fold")
    else:
        table.add_column("name, when", overflow="fold")
        table.add_column("task, source, runs", overflow="fold")
        table.add_column("next", overflow="fold")
    for entry in entries:
        definition = entry.definition
        name, when = Text(quoted(entry.name)), Text(spelled(_when(entry)))
        task, source = Text(spelled(definition.task)), Text(spelled(definition.source))
        state = Text(entry.status, _STYLES[entry.status])
        following, away = "", ""
        if entry.next is not None:
            following = local(entry.next)
            away = distance((entry.next - now).total_seconds())
        runs = f"{entry.total_run_count:,}"
        if wide:
            table.add_row(name, when, task, state, following, away, runs, source)
            continue
        what = task.append("\n").append(source).append(f"\n{runs}")
        tick = Text(f"{following}\n{away}") if following else state
        table.add_row(name.append("\n").append(when.plain, "dim"), what, tick)
    return table


def _when(entry: Periodic) -> str:
    zone = entry.definition.timezone
    return describe(entry.definition.schedule) + ("" if zone is None else f", {zone}")


def show_one(ctx: click.Context, delayq: DelayQ, name: str, *, as_json: bool) -> None:
    """Print an entry (PeriodicUnknown)."""
    entry = _entry(delayq, name)
    if as_json:
        print(json.dumps(entry.as_dict()))
        return
    _show(ctx, entry, now_of(delayq))


def _show(ctx: click.Context, entry: Periodic, now: datetime) -> None:
    console = console_of(ctx)
    for name, value in _fields(entry, now):
        console.print(Text(f"{name:<11}", "bold").append(value), soft_wrap=True)


def _fields(entry: Periodic, now: datetime) -> Iterator[tuple[str, Text]]:
    """Yield what is known of an entry, as name and value."""
    told = entry.as_dict()
    yield "name", Text(quoted(entry.name))
    yield "state", Text(entry.status, _STYLES[entry.status])
    yield "when", Text(spelled(_when(entry)))
    yield "task", Text(spelled(entry.definition.task))
    for title, moment in (("next", entry.next), ("last tick", entry.last_run_at)):
        if moment is not None:
            away = distance((moment - now).total_seconds())
            yield title, Text(f"{local(moment, zone=True)}, {away}")
            yield "", Text(moment.isoformat(), "dim")
    yield "runs", Text(f"{entry.total_run_count:,}")
    yield "source", Text(spelled(entry.definition.source))
    shown = {"name", "source", "when", "task", "schedule", "status", "next", "last_run_at"}
    for name, value in told.items():
        if name not in {*shown, "timezone", "total_run_count"}:
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
        away = distance((tick - now).total_seconds())
        console.print(Text(f"{local(tick, zone=True)}  {away}"), soft_wrap=True)
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
    entry = delayq.periodic.add(
        name, asked.schedule, task, **asked.others, **asked.options, replace=replace
    )
    _note_unknown_task(delayq, task)
    _tell(ctx, delayq, entry, as_json=as_json)


def update(
    ctx: click.Context,
    delayq: DelayQ,
    name: str,
    task: str | None,
    asked: Asked,
    *,
    as_json: bool,
) -> None:
    """Change an entry and show it."""
    changes = dict(asked.others)
    if asked.schedule is not None:
        changes["schedule"] = asked.schedule
    if task is not None:
        changes["task"] = task
        _note_unknown_task(delayq, task)
    if asked.options:
        changes["options"] = {**_entry(delayq, name).definition.options, **asked.options}
    _tell(ctx, delayq, delayq.periodic.update(name, **changes), as_json=as_json)


def _tell(ctx: click.Context, delayq: DelayQ, entry: Periodic, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(entry.as_dict()))
    else:
        _show(ctx, entry, now_of(delayq))


def _note_unknown_task(delayq: DelayQ, task: str) -> None:
    """Say so if a task may be a slip of the pen: it may be another app's."""
    if delayq.app is not None and task not in delayq.app.tasks:
        click.echo(f"Note: this app has no task {spelled(task)}.", err=True)


def remove(
    ctx: click.Context, delayq: DelayQ, names: Sequence[str], *, yes: bool, as_json: bool
) -> None:
    """Remove entries; exits with 1 when one was not there, or somebody said no."""
    if not yes:
        if as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise click.UsageError("nobody can be asked here whether to do it: say --yes")
        what = quoted(names[0]) if len(names) == 1 else f"{len(names):,} entries"
        if not click.confirm(f"Remove {what}?"):
            click.echo("Nothing was changed.", err=True)
            raise click.exceptions.Exit(1)

    def one(name: str) -> Became:
        there = delayq.periodic.remove(name)
        return Became(there, "removed" if there else "unknown")

    _each(ctx, names, one, as_json=as_json)


def pause(ctx: click.Context, delayq: DelayQ, names: Sequence[str], *, as_json: bool) -> None:
    """Pause entries; exits with 1 when one is unknown."""

    def one(name: str) -> Became:
        return Became(True, delayq.periodic.pause(name).status)

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
            done = {"name": name, "done": became.done, "outcome": became.outcome}
            told.append({**done, **became.more})
            if not as_json:
                text = Text(became.outcome, "green" if became.done else "red")
                text.append(f"  {quoted(name)}", "default")
                for what, value in became.more.items():
                    text.append(f"  {what} {quoted(value)}", "dim")
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
