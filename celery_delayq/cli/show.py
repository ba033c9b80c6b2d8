"""``get``, ``list`` and ``count``: scheduled tasks as tables, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta

import click
from rich.table import Table
from rich.text import Text

from celery_delayq.app import DelayQ
from celery_delayq.cli import options, screen
from celery_delayq.cli.command import command
from celery_delayq.cli.text import distance, number_of, quoted, shown_id, stamp
from celery_delayq.errors import InvalidETA
from celery_delayq.model.envelope import due_of_eta
from celery_delayq.model.lookup import State
from celery_delayq.model.scheduled import Filter, ScheduledTask, moment
from celery_delayq.utils.text import spelled

#: Entries in a page, by default.
DEFAULT_LIMIT = 100

_COLUMNS = ("due", "", "state", "priority", "task", "queue", "id")

_STYLES: dict[State, str] = {"scheduled": "", "paused": "yellow", "ready": "green"}


@command()
@options.id_argument
@options.queue_option
@options.json_option
def get(delayq: DelayQ, id: str, queue: str | None, as_json: bool) -> bool:
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
        screen.print_json({"entries": [each.as_dict() for each in found]})
    if not found:
        where = "" if queue is None else f" in queue {spelled(queue)}"
        click.echo(
            f"Nothing with the id {shown_id(id)} waits or runs{where}: it has finished, has no ETA "
            "or never was.",
            err=True,
        )
    elif not as_json:
        output, now = screen.console(), screen.now_of(delayq)
        for number, each in enumerate(found):
            if number:
                output.print()
            screen.print_fields(output, _fields(each, now))
    return bool(found)


@command("list")
@options.with_filter
@options.number_option(
    "--limit",
    type=click.IntRange(1, 10_000),
    help=f"Most entries to show; {DEFAULT_LIMIT} by default.",
)
@options.name_option("--cursor", metavar="CURSOR", help="Show the page after this cursor.")
@options.flag("--all", "all_", help="Show all, page by page.")
@options.json_option
def list_(
    delayq: DelayQ, filter: Filter, limit: int | None, cursor: str | None, all_: bool, as_json: bool
) -> None:
    """Show scheduled tasks, ordered by due time.

    Times are local, with their offset. Ids with special characters are quoted for a shell.

    \b
    Examples:
      celery -A shop delayq list
      celery -A shop delayq list --task shop.remind --due-to 1h
      celery -A shop delayq list --due-from 2030-01-31 --due-to 2030-02-01
      celery -A shop delayq list --queue mail --all --json | jq -r '.entries[].id'
    """
    if all_ and (cursor is not None or limit is not None):
        raise click.UsageError("--all shows everything: leave out --limit and --cursor")
    screen.check_priority(delayq, filter)
    if all_:
        _show_all(delayq, filter, as_json=as_json)
    else:
        _show_page(delayq, filter, limit=limit or DEFAULT_LIMIT, cursor=cursor, as_json=as_json)


@command()
@options.with_filter
@options.json_option
def count(delayq: DelayQ, filter: Filter, as_json: bool) -> None:
    """Count scheduled entries.

    \b
    Examples:
      celery -A shop delayq count
      celery -A shop delayq count --task shop.remind --due-to 1h
      celery -A shop delayq count --queue mail --json | jq .count
    """
    screen.check_priority(delayq, filter)
    number = delayq.count(**asdict(filter))
    if as_json:
        screen.print_json({"count": number})
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
        yield "due", Text(screen.time_text(task.due, now))
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
    page = delayq.list(**asdict(filter), limit=limit, cursor=cursor)
    if as_json:
        screen.print_json({"entries": [each.as_dict() for each in page], "cursor": page.cursor})
        return
    screen.print_pages(delayq, iter(page), _table, limit)
    if page.cursor is not None:
        next_page = _next_page(filter, limit, page.cursor)
        text = Text(f"{number_of(len(page), 'entry', 'entries')}, and there are more: ")
        screen.console().print(text.append(next_page, "dim"), soft_wrap=True)
    else:
        _print_number(delayq, filter, len(page))


def _show_all(delayq: DelayQ, filter: Filter, *, as_json: bool) -> None:
    """Print all entries as they are read."""
    entries = delayq.entries(filter, page=screen.PAGE_ROWS)
    if as_json:
        print('{"entries": [', end="")
        for number, each in enumerate(entries):
            print(",\n" if number else "\n", json.dumps(each.as_dict()), sep="", end="")
        print('\n], "cursor": null}')
        return
    _print_number(delayq, filter, screen.print_pages(delayq, entries, _table))


def _print_number(delayq: DelayQ, filter: Filter, number: int, end: str = ".") -> None:
    output = screen.console()
    if number:
        output.print(f"{number_of(number, 'entry', 'entries')}{end}")
        return
    nothing = "Nothing is scheduled."
    output.print(nothing if filter.is_everything else "0 entries: the filter selects nothing.")
    screen.note_unknown_queue(delayq, filter.queue)


def _table(entries: Sequence[ScheduledTask], now: datetime, width: int) -> Table:
    """Return one row for each entry, in a table that fits *width* columns."""
    ids = [shown_id(each.id) for each in entries]
    table, is_wide, ids_in_lines = screen.table_of_ids(
        ids, width, _COLUMNS, ("due, id", "task, queue")
    )
    for each, id in zip(entries, ids_in_lines, strict=True):
        late = each.due < now and each.state == "scheduled"
        style = "red" if late else _STYLES.get(each.state, "")
        due, away = stamp(each.due), Text(distance((each.due - now).total_seconds()), style)
        queue, task = Text(spelled(each.queue)), Text(spelled(each.task))
        step = "" if each.priority is None else str(each.priority)
        if is_wide:
            table.add_row(due, away, Text(each.state, style), step, task, queue, Text(id))
            continue
        task.append("\n").append(away).append(", ").append(queue)
        if each.priority:
            task.append(f", priority {step}")
        if each.state != "scheduled":
            task.append(", ").append(each.state, style)
        table.add_row(Text(f"{due}\n{id}"), task)
    return table


def _next_page(filter: Filter, limit: int, cursor: str) -> str:
    """Return the command for the next page. Its filter is the same, with absolute times."""
    options = {name: value for name, value in asdict(filter).items() if value is not None}
    if limit != DEFAULT_LIMIT:
        options["limit"] = limit
    options["cursor"] = cursor
    parts = (f"--{name.replace('_', '-')} {quoted(str(value))}" for name, value in options.items())
    return " ".join(("list", *parts))


def _eta(text: str) -> str:
    """Return an ETA as other times are shown; without an offset it is UTC, as for workers."""
    try:
        return stamp(moment(due_of_eta(text).ms))
    except InvalidETA:
        return text
