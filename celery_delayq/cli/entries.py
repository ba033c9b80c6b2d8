"""Scheduled tasks as tables, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from celery_delayq.app import DelayQ
from celery_delayq.cli.screen import (
    WIDE,
    check_priority,
    console_of,
    folded,
    id_width,
    new_table,
    note_unknown_queue,
    now_of,
    print_fields,
    time_text,
)
from celery_delayq.cli.words import distance, number_of, quoted, shown_id, spelled, stamp
from celery_delayq.errors import InvalidETA
from celery_delayq.model.envelope import due_of_eta
from celery_delayq.model.lookup import State
from celery_delayq.model.scheduled import Filter, ScheduledTask, moment

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
        print_fields(console, _fields(each, now))


def _fields(task: ScheduledTask, now: datetime) -> Iterable[tuple[str, Text]]:
    """Yield what is known of a task, as name and value."""
    yield "id", Text(shown_id(task.id))
    yield "task", Text(spelled(task.task))
    yield "queue", Text(spelled(task.queue))
    yield "state", Text(task.state, _STYLES.get(task.state, "cyan"))
    if task.worker:
        yield "worker", Text(spelled(task.worker))
    if _is_due_known(task):
        yield "due", Text(time_text(task.due, now))
    if task.eta is not None:
        yield "eta", Text(spelled(_eta(task.eta)))
    if task.priority is not None:
        yield "priority", Text(str(task.priority))
    told = task.as_dict()
    for name in ("retries", "argsrepr", "kwargsrepr", "unique_key"):
        if told[name] not in (None, 0):
            yield name.removesuffix("repr").replace("_", " "), Text(spelled(str(told[name])))


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
    wide = width >= WIDE
    fixed = id_width(ids, width // 2 if wide else width)
    if wide:
        for name in ("due", "", "state", "priority"):
            table.add_column(name, no_wrap=True)
        for name in ("task", "queue"):
            table.add_column(name, overflow="fold")
        table.add_column("id", no_wrap=True)
    else:
        table.add_column("due, id", overflow="fold", width=fixed)
        table.add_column("task, queue", overflow="fold")
    for each, id in zip(entries, ids, strict=True):
        late = each.due < now and each.state == "scheduled"
        style = "red" if late else _STYLES.get(each.state, "")
        due, away = stamp(each.due), Text(distance((each.due - now).total_seconds()), style)
        queue, task = Text(spelled(each.queue)), Text(spelled(each.task))
        step = "" if each.priority is None else str(each.priority)
        shown = folded(id, fixed)
        if wide:
            table.add_row(due, away, Text(each.state, style), step, task, queue, Text(shown))
            continue
        task.append("\n").append(away).append(", ").append(queue)
        if each.priority:
            task.append(f", priority {step}")
        if each.state != "scheduled":
            task.append(", ").append(each.state, style)
        table.add_row(Text(f"{due}\n{shown}"), task)
    return table


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


def _eta(text: str) -> str:
    """Return an ETA as other times are shown; it is in UTC without an offset, as for workers."""
    try:
        return stamp(moment(due_of_eta(text).ms))
    except InvalidETA:
        return text


def _is_due_known(task: ScheduledTask) -> bool:
    return task.due > moment(0) + timedelta(milliseconds=1)
