"""Dead letters as tables, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime

from rich.table import Table
from rich.text import Text

from celery_delayq.cli import screen
from celery_delayq.cli.text import distance, number_of, shown_id, stamp
from celery_delayq.model.dead_letter import DeadLetter
from celery_delayq.transfer.results import Archived
from celery_delayq.utils.text import spelled

#: Characters that are shown of a reason in a table, and of bytes that are not a message.
MAX_REASON_CHARACTERS, MAX_BYTES_CHARACTERS = 160, 1000

_COLUMNS = ("died", "", "task", "queue", "retries", "reason", "id")


def print_archived(report: Archived, done: str, *, as_json: bool, stderr: bool = False) -> None:
    """Print how many dead letters were exported or archived."""
    if as_json:
        screen.print_json(report.as_dict(), stderr=stderr)
        return
    text = f"{number_of(report.dead_letters, 'dead letter', 'dead letters')} {done}"
    if report.new != report.dead_letters:
        text += f", {report.dead_letters - report.new:,} of them were there already"
    if report.gone:
        text += f"; {report.gone:,} were replayed or moved by others meanwhile"
    screen.console(stderr=stderr).print(f"{text}.")


def print_dead_letter(dead_letter: DeadLetter, now: datetime) -> None:
    """Print all fields of a dead letter, and its traceback."""
    output = screen.console()
    screen.print_fields(output, _fields(dead_letter, now))
    if dead_letter.traceback:
        output.print(Text("traceback", "bold"))
        for line in dead_letter.traceback.splitlines():
            output.print(Text(spelled(line)), soft_wrap=True)


def dead_letters_table(dead_letters: Sequence[DeadLetter], now: datetime, width: int) -> Table:
    """Return one row for each dead letter, in a table that fits *width* columns."""
    ids = [shown_id(each.id) for each in dead_letters]
    narrow = ("died, id", "task, queue, retries, reason")
    table, is_wide, ids_in_lines = screen.table_of_ids(ids, width, _COLUMNS, narrow)
    for dead_letter, id in zip(dead_letters, ids_in_lines, strict=True):
        died, ago = stamp(dead_letter.died), distance((dead_letter.died - now).total_seconds())
        task, queue = Text(spelled(dead_letter.task or "?")), Text(spelled(dead_letter.queue))
        retries = "" if dead_letter.retries is None else str(dead_letter.retries)
        reason = Text(_cut(spelled(dead_letter.reason), MAX_REASON_CHARACTERS), "red")
        if is_wide:
            table.add_row(died, ago, task, queue, retries, reason, Text(id))
            continue
        if dead_letter.retries:
            queue.append(f", {number_of(dead_letter.retries, 'retry', 'retries')}")
        what = task.append(f"\n{ago}, ").append(queue).append("\n").append(reason)
        table.add_row(Text(f"{died}\n{id}"), what)
    return table


def _fields(dead_letter: DeadLetter, now: datetime) -> Iterator[tuple[str, Text]]:
    """Yield names and values of a dead letter."""
    yield "id", Text(shown_id(dead_letter.id))
    if dead_letter.task_id is not None and dead_letter.task_id != dead_letter.id:
        yield "task id", Text(shown_id(dead_letter.task_id))
    yield "task", Text(spelled(dead_letter.task or "?"))
    yield "queue", Text(spelled(dead_letter.queue))
    yield "reason", Text(spelled(dead_letter.reason), "red")
    for name in ("died", "started", "due"):
        time: datetime | None = getattr(dead_letter, name)
        if time is not None:
            yield name, Text(screen.time_text(time, now))
    values = dead_letter.as_dict()
    for name in ("exception", "error", "retries", "deliveries", "worker", "root_id", "group_id"):
        if values[name] is not None:
            yield name.replace("_", " "), Text(spelled(str(values[name])))
    for name in ("args", "kwargs"):
        value, text = values[name], values[f"{name}repr"]
        if value is not None:
            text = json.dumps(value, ensure_ascii=False)  # as replay takes them
        if text is not None:
            yield name, Text(spelled(str(text)))
    if dead_letter.message is None:
        yield (
            "bytes",
            Text(_cut(repr(dead_letter.dead_lettered.message)[2:-1], MAX_BYTES_CHARACTERS)),
        )


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]} [cut]"
