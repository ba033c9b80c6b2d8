"""Dead letters as tables, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from celery_delayq.app import DelayQ
from celery_delayq.cli.entries import PAGE
from celery_delayq.cli.replaying import DEAD_LETTERS, dead_letter_of
from celery_delayq.cli.screen import (
    WIDE,
    console_of,
    folded,
    id_width,
    new_table,
    note_unknown_queue,
    now_of,
    print_fields,
    time_text,
)
from celery_delayq.cli.words import distance, number_of, shown_id, spelled, stamp
from celery_delayq.model.dead_letter import DeadFilter, DeadLetter

#: Dead letters that are shown, if nothing else is said.
LIMIT = 100

#: Characters of a reason that a table shows, and of what is no message.
REASON, BYTES = 160, 1000


def show_many(
    ctx: click.Context, delayq: DelayQ, filter: DeadFilter, *, limit: int | None, as_json: bool
) -> None:
    """Print dead letters as they are read, *limit* of them at most."""
    found = delayq.dead_letters(filter)
    console = console_of(ctx, stderr=as_json)
    shown = 0
    for dead_letters in _pages(found, limit):
        if as_json:
            for dead_letter in dead_letters:
                print(json.dumps(dead_letter.as_dict()))
        else:
            console.print(dead_letters_table(dead_letters, now_of(delayq), console.width))
        shown += len(dead_letters)
    if limit is not None and shown == limit and next(found, None) is not None:
        text = f"{DEAD_LETTERS.number(shown)}, and there are more: give --all or --limit."
        console.print(text, soft_wrap=True)
    elif shown and not as_json:
        console.print(f"{DEAD_LETTERS.number(shown)}.")
    elif not shown:
        _say_none(delayq, filter, console)


def _pages(dead_letters: Iterator[DeadLetter], limit: int | None) -> Iterator[Sequence[DeadLetter]]:
    left = limit
    while page := [*islice(dead_letters, PAGE if left is None else min(PAGE, left))]:
        yield page
        left = None if left is None else left - len(page)


def _say_none(delayq: DelayQ, filter: DeadFilter, console: Console) -> None:
    console.print(
        "There are no dead letters."
        if filter.is_everything
        else f"0 dead letters: {DEAD_LETTERS.none} is meant by this filter."
    )
    note_unknown_queue(delayq, filter.queue, console)


def dead_letters_table(dead_letters: Sequence[DeadLetter], now: datetime, width: int) -> Table:
    """Return one row for each dead letter, that fits *width* columns."""
    table = new_table("")
    ids = [shown_id(each.id) for each in dead_letters]
    wide = width >= WIDE
    fixed = id_width(ids, width // 2 if wide else width)
    if wide:
        table.add_column("died", no_wrap=True)
        table.add_column("", no_wrap=True)
        table.add_column("task", overflow="fold")
        table.add_column("queue", overflow="fold")
        table.add_column("retries", justify="right", no_wrap=True)
        table.add_column("reason", overflow="fold")
        table.add_column("id", no_wrap=True)
    else:
        table.add_column("died, id", overflow="fold", width=fixed)
        table.add_column("task, queue, retries, reason", overflow="fold")
    for dead_letter, id in zip(dead_letters, ids, strict=True):
        died, ago = stamp(dead_letter.died), distance((dead_letter.died - now).total_seconds())
        task, queue = Text(spelled(dead_letter.task or "?")), Text(spelled(dead_letter.queue))
        retries = "" if dead_letter.retries is None else str(dead_letter.retries)
        reason = Text(_cut(spelled(dead_letter.reason), REASON), "red")
        shown = Text(folded(id, fixed))
        if wide:
            table.add_row(died, ago, task, queue, retries, reason, shown)
            continue
        if dead_letter.retries:
            queue.append(f", {number_of(dead_letter.retries, 'retry', 'retries')}")
        what = task.append(f"\n{ago}, ").append(queue).append("\n").append(reason)
        table.add_row(Text(f"{died}\n").append(shown), what)
    return table


def show_one(
    ctx: click.Context, delayq: DelayQ, id: str, queue: str | None, *, as_json: bool
) -> None:
    """Print the dead letter with this id, or all of the task; exits with 1 when there is none."""
    dead_letter = dead_letter_of(delayq, id, queue)
    found = [] if dead_letter is None else [dead_letter]
    if dead_letter is not None and dead_letter.id not in (
        id,
        id.replace("%00", "\0"),
    ):  # by its task's id
        found = [*delayq.dead_letters(queue=queue, task_id=id)]
    if as_json:
        told = [{**each.as_dict(), "message": each.message} for each in found]
        print(json.dumps({"dead_letters": told}))
    if not found:
        where = "" if queue is None else f" in queue {spelled(queue)}"
        click.echo(f"There is no dead letter with the id {shown_id(id)}{where}.", err=True)
        raise click.exceptions.Exit(1)
    if as_json:
        return
    console = console_of(ctx)
    now = now_of(delayq)
    for place, each in enumerate(found):
        if place:
            console.print()
        _show(console, each, now)


def _show(console: Console, dead_letter: DeadLetter, now: datetime) -> None:
    print_fields(console, _fields(dead_letter, now))
    if dead_letter.traceback:
        console.print(Text("traceback", "bold"))
        for line in dead_letter.traceback.splitlines():
            console.print(Text(spelled(line)), soft_wrap=True)


def _fields(dead_letter: DeadLetter, now: datetime) -> Iterator[tuple[str, Text]]:
    """Yield what is known of a dead letter, as name and value."""
    yield "id", Text(shown_id(dead_letter.id))
    if dead_letter.task_id is not None and dead_letter.task_id != dead_letter.id:
        yield "task id", Text(shown_id(dead_letter.task_id))
    yield "task", Text(spelled(dead_letter.task or "?"))
    yield "queue", Text(spelled(dead_letter.queue))
    yield "reason", Text(spelled(dead_letter.reason), "red")
    for name in ("died", "started", "due"):
        time: datetime | None = getattr(dead_letter, name)
        if time is not None:
            yield name, Text(time_text(time, now))
    told = dead_letter.as_dict()
    for name in ("exception", "error", "retries", "deliveries", "worker", "root_id", "group_id"):
        if told[name] is not None:
            yield name.replace("_", " "), Text(spelled(str(told[name])))
    for name in ("args", "kwargs"):
        value, text = told[name], told[f"{name}repr"]
        if value is not None:
            text = json.dumps(value, ensure_ascii=False)  # as replay takes them
        if text is not None:
            yield name, Text(spelled(str(text)))
    if dead_letter.message is None:
        yield "bytes", Text(_cut(repr(dead_letter.dead_lettered.message)[2:-1], BYTES))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]} [cut]"
