"""Dead letters as tables, or as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any

from rich.text import Text

from celery_delayq.app import DelayQ
from celery_delayq.cli import screen
from celery_delayq.cli.items import Bar, Counts, SelectedKind
from celery_delayq.cli.search import search_dead_letters
from celery_delayq.cli.text import (
    argument_texts,
    calls_inside,
    number_of,
    shown_id,
    stamp,
    text_of_calls,
)
from celery_delayq.model.dead_letter import DeadFilter, DeadLetter
from celery_delayq.model.scheduled import Outcome
from celery_delayq.transfer.results import Archived
from celery_delayq.utils.text import distance, spelled

#: Most characters shown of a reason in a table, and of bytes that are not a message.
MAX_REASON_CHARACTERS, MAX_BYTES_CHARACTERS = 160, 1000


def print_archived(report: Archived, done: str, *, stderr: bool = False) -> None:
    """Print how many dead letters were exported or archived."""
    if screen.is_json():
        screen.print_json(report.as_dict(), stderr=stderr)
        return
    text = f"{DEAD_LETTERS.number(report.dead_letters)} {done}"
    if report.new != report.dead_letters:
        text += f", {report.dead_letters - report.new:,} of them were there already"
    if report.gone:
        text += f"; {report.gone:,} were replayed or moved by others meanwhile"
    screen.console(stderr=stderr).print(f"{text}.")


def _row(dead_letter: DeadLetter, id: str, now: datetime, is_wide: bool) -> Sequence[Text | str]:
    died, ago = stamp(dead_letter.died), distance((dead_letter.died - now).total_seconds())
    task, queue = Text(spelled(dead_letter.task or "?")), Text(spelled(dead_letter.queue))
    retries = "" if dead_letter.retries is None else str(dead_letter.retries)
    reason = Text(_cut(spelled(dead_letter.reason), MAX_REASON_CHARACTERS), "red")
    if is_wide:
        return died, ago, task, queue, retries, reason, Text(id)
    if dead_letter.retries:
        queue.append(f", {number_of(dead_letter.retries, 'retry', 'retries')}")
    what = task.append(f"\n{ago}, ").append(queue).append("\n").append(reason)
    return Text(f"{died}\n{id}"), what


def _fields(dead_letter: DeadLetter) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of a dead letter's fields."""
    yield "id", shown_id(dead_letter.id)
    if dead_letter.task_id is not None and dead_letter.task_id != dead_letter.id:
        yield "task id", shown_id(dead_letter.task_id)
    yield "task", dead_letter.task or "?"
    yield "queue", dead_letter.queue
    yield "reason", Text(spelled(dead_letter.reason), "red")
    for name in ("died", "started", "due"):
        yield name, getattr(dead_letter, name)
    values = dead_letter.as_dict()
    for name in ("exception", "error", "retries", "deliveries", "worker", "root_id", "group_id"):
        yield name.replace("_", " "), values[name]
    yield from argument_texts(values)
    yield "calls", text_of_calls(calls_inside(dead_letter.message))
    if dead_letter.message is None:
        text = repr(dead_letter.dead_lettered.message)[2:-1]
        yield "bytes", _cut(text, MAX_BYTES_CHARACTERS)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]} [cut]"


def _count(delayq: DelayQ, filter: DeadFilter, bar: Bar) -> Counts:
    """Count dead letters by queue and task. Reads every dead letter of the selection."""
    counts = Counts()
    search = search_dead_letters(delayq, DEAD_LETTERS, filter)
    for page in search.pages(bar):
        counts.update((each.queue, each.task or "?") for each in page)
    search.finish()
    counts.unknown = search.unknown
    return counts


DEAD_LETTERS = SelectedKind(
    one="dead letter",
    many="dead letters",
    nothing="There are no dead letters.",
    none="no dead letter",
    id_of=lambda dead_letter: shown_id(dead_letter.id),
    columns=("died", "", "task", "queue", "retries", "reason", "id"),
    narrow=("died, id", "task, queue, retries, reason"),
    row=_row,
    fields=_fields,
    traceback=attrgetter("traceback"),
    values=lambda dead_letter: {**dead_letter.as_dict(), "message": dead_letter.message},
    count=_count,
    why={
        Outcome.UNKNOWN: "there is no such dead letter, or no more",
        Outcome.CHANGED: "another dead letter has its id by now",
        Outcome.CONFLICT: "another task has its unique key",
        Outcome.UNREADABLE: "it is no message of a task, its arguments cannot be decoded here, or "
        "it never had a queue (--to-queue)",
    },
)
