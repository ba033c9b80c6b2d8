"""Scheduled tasks as tables, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

import click
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from celery_delayq.app import DelayQ
from celery_delayq.cli.screen import (
    check_priority,
    console_of,
    new_table,
    note_unknown_queue,
)
from celery_delayq.cli.words import (
    distance,
    local,
    number_of,
    quoted,
    shown_id,
    spelled,
)
from celery_delayq.entries import Filter, ScheduledTask, moment
from celery_delayq.places import State

#: Columns of a terminal from which on each thing has a column of its own.
WIDE = 120

#: Columns that ids as Celery makes them need, and how narrow a terminal may be to spare them.
ID_WIDTH, ID_FITS = 36, 76

#: Entries that are shown in one table, if nothing else is said.
LIMIT = 100

#: Entries that are read at a time where all are shown.
PAGE = 500

_STYLES: dict[State, str] = {"scheduled": "", "paused": "yellow", "ready": "green"}


def show_one(ctx: click.Context, delayq: DelayQ, id: str, queue: str | None, as_json: bool) -> None:
    """Print all that has this id; exits with 1 when there is nothing."""
    found = sorted(delayq.find(id, queue=queue), key=lambda each: each.due)
    if as_json:
        print(json.dumps({"entries": [each.as_dict() for each in found]}))
    if not found:
        where = "" if queue is None else f" in queue {spelled(queue)}"
        click.echo(
            f"Nothing with the id {shown_id(id)} waits or runs{where}: it has finished, has no ETA "
            "or never was.",
            err=True,
        )
        raise click.exceptions.Exit(1)
    if as_json:
        return
    console = console_of(ctx)
    now = now_of(delayq)
    for place, each in enumerate(found):
        if place:
            console.print()
        for name, value in _fields(each, now):
            # Not folded: the terminal does that, and one can copy it as one line.
            console.print(Text(f"{name:<11}", "bold").append(value), soft_wrap=True)


def _fields(task: ScheduledTask, now: datetime) -> Iterable[tuple[str, Text]]:
    """Yield what is known of a task, as name and value."""
    yield "id", Text(shown_id(task.id))
    yield "task", Text(spelled(task.task))
    yield "queue", Text(spelled(task.queue))
    yield "state", Text(task.state, _STYLES.get(task.state, "cyan"))
    if task.worker:
        yield "worker", Text(spelled(task.worker))
    if _is_due_known(task):
        away = distance((task.due - now).total_seconds())
        yield "due", Text(f"{local(task.due, zone=True)}, {away}")
        yield "", Text(task.due.isoformat(), "dim")
    if task.eta is not None:
        yield "eta", Text(spelled(str(task.eta)))
    if task.priority is not None:
        yield "priority", Text(str(task.priority))
    told = task.as_dict()
    for name in ("retries", "args", "kwargs", "unique_key"):
        if told[name] not in (None, 0):
            yield name.replace("_", " "), Text(spelled(str(told[name])))


def show_page(
    ctx: click.Context,
    delayq: DelayQ,
    filter: Filter,
    *,
    limit: int,
    cursor: str | None,
    as_json: bool,
) -> None:
    """Print a page of what is scheduled, and how to see the next one."""
    check_priority(delayq, filter)
    page = delayq.list(**_as_options(filter), limit=limit, cursor=cursor)
    if as_json:
        print(json.dumps({"entries": [each.as_dict() for each in page], "cursor": page.cursor}))
        return
    console = console_of(ctx)
    if page.entries:
        console.print(entries_table(page.entries, now_of(delayq), console.width))
    if page.cursor is not None:
        command = _next_page(filter, limit, page.cursor)
        text = Text(f"{number_of(len(page), 'entry', 'entries')}, and there are more: ")
        console.print(text.append(command, "dim"), soft_wrap=True)
    elif page.entries:
        console.print(f"{number_of(len(page), 'entry', 'entries')}.")
    else:
        _say_none(delayq, filter, console)


def show_all(ctx: click.Context, delayq: DelayQ, filter: Filter, *, as_json: bool) -> None:
    """Print all that is scheduled, as it is read."""
    check_priority(delayq, filter)
    entries = delayq.entries(filter, page=PAGE)
    if as_json:
        print('{"entries": [', end="")
        for place, each in enumerate(entries):
            print(",\n" if place else "\n", json.dumps(each.as_dict()), sep="", end="")
        print('\n], "cursor": null}')
        return
    console = console_of(ctx)
    shown = 0
    while rows := [*islice(entries, PAGE)]:
        console.print(entries_table(rows, now_of(delayq), console.width))
        shown += len(rows)
    if shown:
        console.print(f"{number_of(shown, 'entry', 'entries')}.")
    else:
        _say_none(delayq, filter, console)


def show_count(ctx: click.Context, delayq: DelayQ, filter: Filter, *, as_json: bool) -> None:
    """Print how many entries are scheduled."""
    check_priority(delayq, filter)
    number = delayq.count(**_as_options(filter))
    if as_json:
        print(json.dumps({"count": number}))
    elif number:
        console_of(ctx).print(number_of(number, "entry", "entries"))
    else:
        _say_none(delayq, filter, console_of(ctx))


def _say_none(delayq: DelayQ, filter: Filter, console: Console) -> None:
    console.print(
        "Nothing is scheduled."
        if filter.is_everything
        else "0 entries: nothing that is scheduled is meant by this filter."
    )
    note_unknown_queue(delayq, filter.queue, console)


def entries_table(entries: Sequence[ScheduledTask], now: datetime, width: int) -> Table:
    """Return one row for each entry, that fits *width* columns."""
    table = new_table("")
    ids = [shown_id(each.id) for each in entries]
    longest = max(map(cell_len, ids), default=0)
    wide = width >= WIDE
    room = max(ID_WIDTH, width // 3) if wide else ID_WIDTH
    # At this width only ids are cut by hand: rich would swallow spaces at the end of a line.
    fixed = min(longest, room) if width >= ID_FITS else None
    if wide:
        for name in ("due", "", "state", "priority"):
            table.add_column(name, no_wrap=True)
    else:
        table.add_column("due", overflow="fold")
    table.add_column("task" if wide else "task, queue", overflow="fold")
    if wide:
        table.add_column("queue", overflow="fold")
    table.add_column("id", overflow="fold", width=fixed)
    for each, id in zip(entries, ids, strict=True):
        seconds = (each.due - now).total_seconds()
        style = "red" if seconds < 0 and each.state == "scheduled" else _STYLES.get(each.state, "")
        due, away = local(each.due), Text(distance(seconds), style)
        queue, task = Text(spelled(each.queue)), Text(spelled(each.task))
        step = "" if each.priority is None else str(each.priority)
        shown = Text(id if fixed is None else folded(id, fixed))
        if wide:
            table.add_row(due, away, Text(each.state, style), step, task, queue, shown)
            continue
        if each.priority:
            queue.append(f", priority {step}")
        if each.state != "scheduled":
            queue.append(", ").append(each.state, style)
        table.add_row(Text(due + "\n").append(away), task.append("\n").append(queue), shown)
    return table


def folded(text: str, width: int) -> str:
    """Return a text in lines of so many cells."""
    lines, room = [""], width
    for one in text:
        room -= cell_len(one)
        if room < 0:
            lines.append("")
            room = width - cell_len(one)
        lines[-1] += one
    return "\n".join(lines)


def _next_page(filter: Filter, limit: int, cursor: str) -> str:
    """Return how to see the next page. The filter has to be the same, also as to time."""
    options = {name: value for name, value in _as_options(filter).items() if value is not None}
    if limit != LIMIT:
        options["limit"] = limit
    options["cursor"] = cursor
    parts = (f"--{name.replace('_', '-')} {quoted(str(value))}" for name, value in options.items())
    return " ".join(("list", *parts))


def _as_options(filter: Filter) -> dict[str, Any]:
    names = ("queue", "task", "due_from", "due_to", "priority")
    return {name: getattr(filter, name) for name in names}


def _is_due_known(task: ScheduledTask) -> bool:
    return task.due > moment(0) + timedelta(milliseconds=1)


def now_of(delayq: DelayQ) -> datetime:
    """Return what Redis' clock says: it decides what is due."""
    return moment(delayq.store.now_ms())
