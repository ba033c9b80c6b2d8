"""``get``, ``list`` and ``count``: scheduled tasks as tables, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from celery_delayq.app import DelayQ
from celery_delayq.cli.command import command
from celery_delayq.cli.options import (
    flag,
    id_argument,
    json_option,
    name_option,
    number_option,
    queue_option,
    with_filter,
)
from celery_delayq.cli.screen import (
    PAGE,
    WIDE,
    check_priority,
    console,
    folded,
    id_width,
    new_table,
    note_unknown_queue,
    now_of,
    print_fields,
    print_json,
    time_text,
)
from celery_delayq.cli.text import distance, number_of, quoted, shown_id, stamp
from celery_delayq.errors import InvalidETA
from celery_delayq.model.envelope import due_of_eta
from celery_delayq.model.lookup import State
from celery_delayq.model.scheduled import Filter, ScheduledTask, moment
from celery_delayq.utils.text import spelled

#: Entries in a page, by default.
LIMIT = 100

_STYLES: dict[State, str] = {"scheduled": "", "paused": "yellow", "ready": "green"}


@command()
@id_argument
@queue_option
@json_option
def get(delayq: DelayQ, id: str, queue: str | None, as_json: bool) -> None:
    """Show where a task waits, or which worker has it.

    The due time can be pasted as --if-eta. A task that was routed to two queues is shown twice.
    Exits with 1 when it has finished or never was.

    \b
    Examples:
      celery -A shop delayq get 0d1b0f6e-9f5c-4f0e-a8f5-1f6d8cf1f1a5
      celery -A shop delayq get mail-7 --json | jq -r '.entries[0].due'
    """
    found = sorted(delayq.find(id, queue=queue), key=lambda each: each.due)
    if as_json:
        print_json({"entries": [each.as_dict() for each in found]})
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
    output, now = console(), now_of(delayq)
    for number, each in enumerate(found):
        if number:
            output.print()
        print_fields(output, _fields(each, now))


@command("list")
@with_filter
@number_option(
    "--limit", type=click.IntRange(1, 10_000), help=f"Most entries to show; {LIMIT} by default."
)
@name_option("--cursor", metavar="CURSOR", help="Show the page after this cursor.")
@flag("--all", "all_", help="Show all, page by page.")
@json_option
def list_(
    delayq: DelayQ,
    filter: Filter,
    limit: int | None,
    cursor: str | None,
    all_: bool,
    as_json: bool,
) -> None:
    """Show scheduled tasks, ordered by due time.

    Times are local, with their offset. Paused entries come last. Ids with special characters are
    quoted for a shell.

    \b
    Examples:
      celery -A shop delayq list
      celery -A shop delayq list --task shop.remind --due-to 1h
      celery -A shop delayq list --due-from 2030-01-31 --due-to 2030-02-01
      celery -A shop delayq list --queue mail --all --json | jq -r '.entries[].id'
    """
    if all_ and (cursor is not None or limit is not None):
        raise click.UsageError("--all shows everything: leave out --limit and --cursor")
    check_priority(delayq, filter)
    if all_:
        _show_all(delayq, filter, as_json=as_json)
    else:
        _show_page(delayq, filter, limit=limit or LIMIT, cursor=cursor, as_json=as_json)


@command()
@with_filter
@json_option
def count(delayq: DelayQ, filter: Filter, as_json: bool) -> None:
    """Count scheduled entries.

    \b
    Examples:
      celery -A shop delayq count
      celery -A shop delayq count --task shop.remind --due-to 1h
      celery -A shop delayq count --queue mail --json | jq .count
    """
    check_priority(delayq, filter)
    number = delayq.count(**_as_options(filter))
    if as_json:
        print_json({"count": number})
    else:
        _print_number(delayq, filter, number, end="")


def _fields(task: ScheduledTask, now: datetime) -> Iterable[tuple[str, Text]]:
    """Yield names and values of a task."""
    yield "id", Text(shown_id(task.id))
    yield "task", Text(spelled(task.task))
    yield "queue", Text(spelled(task.queue))
    yield "state", Text(task.state, _STYLES.get(task.state, "cyan"))
    if task.worker:
        yield "worker", Text(spelled(task.worker))
    if task.due > moment(0) + timedelta(milliseconds=1):  # known
        yield "due", Text(time_text(task.due, now))
    if task.eta is not None:
        yield "eta", Text(spelled(_eta(task.eta)))
    if task.priority is not None:
        yield "priority", Text(str(task.priority))
    values = task.as_dict()
    for name in ("retries", "argsrepr", "kwargsrepr", "unique_key"):
        if values[name] not in (None, 0):
            yield name.removesuffix("repr").replace("_", " "), Text(spelled(str(values[name])))


def _show_page(
    delayq: DelayQ, filter: Filter, *, limit: int, cursor: str | None, as_json: bool
) -> None:
    """Print a page, and the command that shows the next one."""
    page = delayq.list(**_as_options(filter), limit=limit, cursor=cursor)
    if as_json:
        print_json({"entries": [each.as_dict() for each in page], "cursor": page.cursor})
        return
    output = console()
    if page.entries:
        output.print(_table(page.entries, now_of(delayq), output.width))
    if page.cursor is not None:
        next_page = _next_page(filter, limit, page.cursor)
        text = Text(f"{number_of(len(page), 'entry', 'entries')}, and there are more: ")
        output.print(text.append(next_page, "dim"), soft_wrap=True)
    else:
        _print_number(delayq, filter, len(page))


def _show_all(delayq: DelayQ, filter: Filter, *, as_json: bool) -> None:
    """Print all entries as they are read."""
    entries = delayq.entries(filter, page=PAGE)
    if as_json:
        print('{"entries": [', end="")
        for number, each in enumerate(entries):
            print(",\n" if number else "\n", json.dumps(each.as_dict()), sep="", end="")
        print('\n], "cursor": null}')
        return
    output = console()
    shown = 0
    while rows := [*islice(entries, PAGE)]:
        output.print(_table(rows, now_of(delayq), output.width))
        shown += len(rows)
    _print_number(delayq, filter, shown)


def _print_number(delayq: DelayQ, filter: Filter, number: int, end: str = ".") -> None:
    output = console()
    if number:
        output.print(f"{number_of(number, 'entry', 'entries')}{end}")
        return
    nothing = "Nothing is scheduled."
    output.print(nothing if filter.is_everything else "0 entries: the filter selects nothing.")
    note_unknown_queue(delayq, filter.queue)


def _table(entries: Sequence[ScheduledTask], now: datetime, width: int) -> Table:
    """Return one row for each entry, in a table that fits *width* columns."""
    table = new_table()
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
    """Return the command for the next page. Its filter is the same, with absolute times."""
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
    """Return an ETA as other times are shown; without an offset it is UTC, as for workers."""
    try:
        return stamp(moment(due_of_eta(text).ms))
    except InvalidETA:
        return text
