"""What commands write on: the terminal, and what a filter means in words."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from difflib import get_close_matches
from typing import Any

import click
from celery.schedules import BaseSchedule
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from celery_delayq.app import DelayQ
from celery_delayq.cli.words import distance, number_of, spelled, stamp
from celery_delayq.model.scheduled import Filter, Outcome, moment
from celery_delayq.periodic.schedules import clocked
from celery_delayq.periodic.serialization import describe
from celery_delayq.store.schedule import layouts

#: Columns of a terminal from which on each thing has a column of its own.
WIDE = 160

#: How narrow a terminal may be to have ids as Celery makes them in one line.
ID_FITS = 60

#: Columns of a time, and least ones of what stands beside it.
TIME_WIDTH, OTHERS_WIDTH = 29, 24


@dataclass(frozen=True, slots=True)
class Things:
    """What a command changes.

    Attributes
    ----------
    one, many : str
        How one of them is called, and several.
    none : str
        Of what there is none when a filter means nothing.
    why : Mapping[Outcome, str]
        Why one may not have been changed.
    count : Callable[[DelayQ, Any], Counter[tuple[str, str]]]
        Counts what a filter means by queue and task.
    """

    one: str
    many: str
    none: str
    why: Mapping[Outcome, str]
    count: Callable[[DelayQ, Any], Counter[tuple[str, str]]]

    def number(self, number: int) -> str:
        """Return ``1 entry``, ``1,204 entries``."""
        return number_of(number, self.one, self.many)


def console_of(ctx: click.Context, *, stderr: bool = False) -> Console:
    """Return a console that heeds ``celery --no-color`` and can write any name."""
    stream = sys.stderr if stderr else sys.stdout
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="backslashreplace")
    return Console(highlight=False, stderr=stderr, no_color=ctx.obj.no_color or None)


def new_table(title: str) -> Table:
    """Return a table that spends no room on frames."""
    return Table(title=title, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)


def print_fields(console: Console, fields: Iterable[tuple[str, Text]]) -> None:
    """Print what is known of something, as name and value.

    Not folded: the terminal does that, and one can copy a value as one line.
    """
    rows = [*fields]
    width = max((len(name) for name, _ in rows), default=0) + 2
    for name, value in rows:
        console.print(Text(f"{name:<{width}}", "bold").append(value), soft_wrap=True)


def time_text(time: datetime, now: datetime) -> str:
    """Return a point in time and how far away it is."""
    return f"{stamp(time)}, {distance((time - now).total_seconds())}"


def schedule_text(given: BaseSchedule) -> str:
    """Return a schedule in words."""
    return f"at {stamp(given.at)}" if isinstance(given, clocked) else describe(given)


def now_of(delayq: DelayQ) -> datetime:
    """Return what Redis' clock says: it decides what is due."""
    return moment(delayq.store.now_ms())


def id_width(ids: Iterable[str], width: int) -> int | None:
    """Return how wide a column for a time and an id is on a terminal of *width* columns.

    None leaves it to rich: there is no room for an id in one line.
    """
    if width < ID_FITS:
        return None
    return min(max((TIME_WIDTH, *map(cell_len, ids))), width - OTHERS_WIDTH)


def folded(text: str, width: int | None) -> str:
    """Return a text in lines of so many cells."""
    if width is None:
        return text
    # By hand: rich would swallow spaces at the end of a line.
    lines, room = [""], width
    for one in text:
        room -= cell_len(one)
        if room < 0:
            lines.append("")
            room = width - cell_len(one)
        lines[-1] += one
    return "\n".join(lines)


def known_queues(delayq: DelayQ) -> set[str]:
    """Return the queues of the app and those that were ever scheduled on."""
    declared = delayq.app.amqp.queues
    return {*delayq.store.registry(), *declared}


def note_unknown_queue(delayq: DelayQ, queue: str | None, console: Console) -> None:
    """Say so if a queue may be a slip of the pen."""
    known = known_queues(delayq)
    if queue is not None and queue not in known:
        names = ", ".join(spelled(name) for name in sorted(known)) or "none"
        console.print(
            Text(f"There is no queue {spelled(queue)} in Redis or in the app; known: {names}")
        )


def known_tasks(delayq: DelayQ) -> set[str] | None:
    """Return the tasks of the app, with those in all modules that its workers import.

    None where these cannot be imported here, which is told.
    """
    app = delayq.app
    try:
        app.loader.import_default_modules()
        return {*app.tasks}
    except Exception as exc:  # modules are anybody's
        click.echo(f"It cannot be told which tasks the app knows: {spelled(str(exc))}", err=True)
        return None


def note_unknown_task(delayq: DelayQ, task: str, scheduled: set[str] | None = None) -> None:
    """Say so if a task may be a slip of the pen: it may be another app's."""
    of_app = known_tasks(delayq)
    known = (of_app or set()) | (scheduled or set())
    if of_app is None or task in known:
        return
    similar = get_close_matches(task, known, 1)
    guess = f"; did you mean {spelled(similar[0])}?" if similar else "."
    also = "" if scheduled is None else ", and none is scheduled"
    click.echo(f"Note: this app has no task {spelled(task)}{also}{guess}", err=True)


def check_priority(delayq: DelayQ, filter: Filter) -> None:
    """Refuse a priority that no entry can have (click.UsageError)."""
    if filter.priority is None:
        return
    found = layouts(delayq.store.registry())
    steps = {step for layout in found.values() for step in layout.steps}
    if steps and filter.priority not in steps:
        known = ", ".join(map(str, sorted(steps)))
        raise click.UsageError(
            f"--priority {filter.priority}: there are the steps {known}; a task is in the step of "
            "its priority or the one below"
        )


def count_meant(delayq: DelayQ, filter: Filter) -> Counter[tuple[str, str]]:
    """Count the entries that a filter means, by queue and task; what is unreadable is of ``?``."""
    counts: Counter[tuple[str, str]] = Counter()
    if filter.priority is not None:
        counts.update((each.queue, each.task) for each in delayq.entries(filter))
        return counts
    store = delayq.store
    for queue in store.registry() if filter.queue is None else [filter.queue]:
        tasks = store.scheduled_tasks(queue) if filter.task is None else [filter.task]
        for task in tasks:
            counts[queue, task] = _count(delayq, replace(filter, queue=queue, task=task))
        if filter.task is None:
            told = sum(number for (name, _), number in counts.items() if name == queue)
            counts[queue, "?"] += max(0, _count(delayq, replace(filter, queue=queue)) - told)
    return +counts


def _count(delayq: DelayQ, filter: Filter) -> int:
    return delayq.count(
        queue=filter.queue, task=filter.task, due_from=filter.due_from, due_to=filter.due_to
    )


def in_words(counts: Counter[tuple[str, str]], things: Things) -> str:
    """Return ``1,204 entries of 2 tasks in 3 queues``."""
    queues, tasks = ({key[i] for key in counts} for i in (0, 1))
    text = things.number(counts.total())
    if tasks:
        text += f" of {spelled(*tasks)}" if len(tasks) == 1 else f" of {len(tasks):,} tasks"
        text += (
            f" in queue {spelled(*queues)}" if len(queues) == 1 else f" in {len(queues):,} queues"
        )
    return text


def meant_table(counts: Counter[tuple[str, str]], things: Things) -> Table:
    """Return how many of which task in which queue are meant."""
    table = new_table("")
    table.add_column("task", overflow="fold")
    table.add_column("queue", overflow="fold")
    table.add_column(things.many, justify="right", no_wrap=True)
    for (queue, task), number in sorted(counts.items()):
        table.add_row(Text(spelled(task)), Text(spelled(queue)), f"{number:,}")
    return table
