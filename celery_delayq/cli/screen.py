"""The output of commands: consoles, tables, progress bars and notes."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from itertools import chain
from time import monotonic
from typing import Any, TypeVar

import click
from celery.schedules import BaseSchedule
from kombu.utils.url import maybe_sanitize_url
from rich import box
from rich.console import Console, JustifyMethod
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from celery_delayq.admin.exit_codes import Refused
from celery_delayq.app import DelayQ
from celery_delayq.cli.text import stamp
from celery_delayq.errors import ConfigError
from celery_delayq.integration.send_task import imported_tasks
from celery_delayq.model.dead_letter import DeadFilter
from celery_delayq.model.scheduled import Filter, moment
from celery_delayq.periodic.schedules import clocked
from celery_delayq.periodic.serialization import describe
from celery_delayq.store.store import Store, layouts
from celery_delayq.utils.text import did_you_mean, distance, spelled

#: Titles of columns with numbers, and with other short values. All other columns are folded.
_NUMBER_TITLES = {
    "retries",
    "runs",
    "found",
    "repaired",
    "scheduled",
    "ready",
    "entries",
    "dead letters",
    "held",
    "lanes",
    "used",
}
_SHORT_TITLES = {"", "due", "died", "next", "state", "priority", "id"}

#: Seconds of a search after which a progress bar appears.
PROGRESS_BAR_SECONDS = 0.5

#: Width of a table, in columns, where the output is no terminal: each row is one line.
FILE_COLUMNS = 1_000_000

#: Key in click's context: whether the command has the option ``--json``.
JSON_KEY = "celery_delayq.json"

T = TypeVar("T")


class _FileConsole(Console):
    """A console without a terminal. It leaves out the blanks with which tables are padded."""

    def print(self, *objects: Any, **options: Any) -> None:
        for each in objects:
            if isinstance(each, Table):
                each.title_justify = "left"  # above the first column of a wide table
        with self.capture() as printed:
            super().print(*objects, **options)
        self.file.write(re.sub(" +(?=\n)", "", printed.get()))
        self.file.flush()


def is_json() -> bool:
    """Return whether the command has the option ``--json``: its output is JSON."""
    return bool(click.get_current_context().meta.get(JSON_KEY))


def console(*, stderr: bool = False) -> Console:
    """Return a console that respects ``celery --no-color`` and can write any name.

    Without a terminal no line is folded, unless the variable COLUMNS is set.
    """
    stream = sys.stderr if stderr else sys.stdout
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="backslashreplace")
    no_color = click.get_current_context().obj.no_color or None
    made = Console(highlight=False, stderr=stderr, no_color=no_color)
    if made.is_terminal:
        return made
    made = _FileConsole(highlight=False, stderr=stderr, no_color=no_color)
    if "COLUMNS" not in os.environ:
        made.width = FILE_COLUMNS
    return made


def gap_of(console: Console) -> str:
    """Return what is between the parts of a cell: where each row is one line, no line break."""
    return "; " if console.width == FILE_COLUMNS else "\n"


def new_table(*columns: str, title: str = "") -> Table:
    """Return a table without frames, with columns formatted by their titles."""
    table = Table(title=title, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in columns:
        justify: JustifyMethod = "right" if name in _NUMBER_TITLES else "left"
        table.add_column(
            name, justify=justify, no_wrap=name in _NUMBER_TITLES | _SHORT_TITLES, overflow="fold"
        )
    return table


def print_fields(console: Console, fields: Iterable[tuple[str, Any]], now: datetime) -> None:
    """Print names and values, without those that are None.

    A time is shown with its distance from *now*. Long values are folded by the terminal, so that
    each can be copied as one line.
    """
    rows = [(name, value) for name, value in fields if value is not None]
    width = max((len(name) for name, _ in rows), default=0) + 2
    for name, value in rows:
        if not isinstance(value, Text):
            shown = time_text(value, now) if isinstance(value, datetime) else str(value)
            value = Text(spelled(shown))
        console.print(Text(f"{name:<{width}}", "bold").append(value), soft_wrap=True)


def time_text(time: datetime, now: datetime) -> str:
    """Return a time and its distance from now."""
    return f"{stamp(time)}, {distance((time - now).total_seconds())}"


def schedule_text(given: BaseSchedule) -> str:
    """Return a schedule as text."""
    return f"at {stamp(given.at)}" if isinstance(given, clocked) else describe(given)


def now_of(delayq: DelayQ) -> datetime:
    """Return the time by the clock that decides what is due."""
    return moment(delayq.session.now_ms())


class _EndColumn(ProgressColumn):
    """The expected time of day of the end."""

    def render(self, task: Task) -> Text:
        seconds = task.time_remaining
        if not seconds or not math.isfinite(seconds):
            return Text("")
        return Text(f"ends {datetime.now() + timedelta(seconds=seconds):%H:%M:%S}")


@contextmanager
def progress_bar(description: str = "", at_once: bool = True) -> Iterator[Callable[..., None]]:
    """Show a bar on a terminal unless the output is JSON; yield the function that updates the bar.

    The function takes the total (None if unknown), the number done, and the name of the step if
    there are several steps. The bar is on standard error, because standard output may contain
    data. Without *at_once* the bar appears at the first call of the function.
    """
    columns = (
        *("{task.description}", BarColumn(), MofNCompleteColumn()),
        *(TimeRemainingColumn(), _EndColumn()),
    )
    terminal = console(stderr=True)
    hidden = is_json() or not terminal.is_terminal
    progress = Progress(*columns, console=terminal, disable=hidden, transient=True)
    bar = progress.add_task(description, total=None)
    current = description
    if at_once and not hidden:
        progress.start()

    def show(total: int | None, done: int, step: str = description) -> None:
        nonlocal current
        if not hidden and not progress.live.is_started:
            progress.start()
        if step != current:  # each step has its own speed
            current = step
            progress.reset(bar, description=step)
        # The number may exceed the first total: other processes may add items.
        most = None if total is None else max(total, done)
        progress.update(bar, total=most, completed=done)

    try:
        yield show
    finally:
        if progress.live.is_started:
            progress.stop()


def with_bar(
    read: Callable[[Callable[..., None]], Iterator[T]], *, description: str
) -> Iterator[T]:
    """Yield rows. A bar appears while the search for the next row takes long.

    Parameters
    ----------
    read : Callable[[Callable[..., None]], Iterator[T]]
        Returns the rows. Takes the function of :func:`progress_bar` and calls it while it reads.
    """
    with ExitStack() as stack:
        bar: Callable[..., None] | None = None
        since = monotonic()

        def show(total: int | None, done: int) -> None:
            nonlocal bar
            if bar is None and monotonic() - since > PROGRESS_BAR_SECONDS:
                shown = progress_bar(description=description)
                bar = stack.enter_context(shown)
            if bar is not None:
                bar(total, done)

        for row in read(show):
            if bar is not None:  # nothing else can be printed while a bar is shown
                stack.close()
                bar = None
            yield row
            since = monotonic()


def print_list(lines: Sequence[Text], total: int, *, stderr: bool = False) -> None:
    """Print some lines, and how many of *total* lines are not shown."""
    output = console(stderr=stderr)
    for line in lines:
        output.print(line, soft_wrap=True)
    if total > len(lines):
        output.print(f"… and {total - len(lines):,} more")


def print_json(value: Any, *, stderr: bool = False) -> None:
    """Print a value as JSON in one line."""
    print(json.dumps(value), file=sys.stderr if stderr else sys.stdout)


def unknown_queue(delayq: DelayQ, queue: str | None, found: Iterable[str] = ()) -> str:
    """Return a text about a queue that may be a typo; "" for a known queue."""
    if queue is None or delayq.session.on_rabbitmq:  # RabbitMQ has no list of queues
        return ""
    known = {*delayq.app.amqp.queues, *found}
    if queue in known:  # without a call to Redis: another shard of a cluster may be away
        return ""
    known |= {*delayq.session.stores.registry()}
    if queue in known:
        return ""
    names = ", ".join(spelled(name) for name in sorted(known)) or "none"
    meant = did_you_mean(queue, known)
    return f"no queue {spelled(queue)} in Redis or in the app; known: {names}{meant}"


def check_queue(delayq: DelayQ, queue: str | None, found: Iterable[str] = ()) -> None:
    """Refuse a queue that may be a typo (Refused)."""
    if problem := unknown_queue(delayq, queue, found):
        raise Refused(problem)


def whole_command(command: str) -> str:
    """Return a command of delayq as it can be pasted, with ``celery`` and its options before it.

    Passwords in URLs are hidden.
    """
    if click.get_current_context().find_root().command.name != "celery":
        return command
    before: list[str] = []
    for word in sys.argv[1:]:
        is_name = before[-1:] in (["-A"], ["--app"])
        before.append(maybe_sanitize_url(word) if "://" in word else word)
        if word == "delayq" and not is_name:
            break
    return f"celery {shlex.join(before)} {command}"


def note_unknown_queue(delayq: DelayQ, queue: str | None, *, stderr: bool = False) -> None:
    """Print a note about a queue that may be a typo."""
    if problem := unknown_queue(delayq, queue):
        console(stderr=stderr).print(Text(f"There is {problem}"))


def note_unknown_names(delayq: DelayQ, filter: Filter | DeadFilter) -> None:
    """Print notes about the queue and the task of a filter that may be typos."""
    note_unknown_queue(delayq, filter.queue, stderr=True)
    if filter.task is not None:
        note_unknown_task(delayq, filter.task)


def known_tasks(delayq: DelayQ) -> set[str] | None:
    """Return the tasks of the app, after an import of all modules that its workers import.

    Print a note and return None if a module cannot be imported here.
    """
    try:
        return {*imported_tasks(delayq.app), *delayq.session.renames.by_former_name}
    except ConfigError as exc:
        click.echo(f"Cannot tell which tasks the app knows: {spelled(str(exc))}", err=True)
        return None


def scheduled_tasks(delayq: DelayQ) -> set[str]:
    """Return the names of the tasks of all scheduled entries."""
    stores = delayq.session.stores
    found = stores.run_each(stores.registry(), Store.scheduled_tasks_steps)
    return {*chain.from_iterable(found.values())}


def note_unknown_task(delayq: DelayQ, task: str, scheduled: set[str] | None = None) -> None:
    """Print a note about a task that may be a typo. It may also belong to another app."""
    if problem := unknown_task(delayq, task, scheduled):
        click.echo(f"Note: {problem}", err=True)


def check_task(delayq: DelayQ, task: str, scheduled: set[str] | None = None) -> None:
    """Refuse a task that may be a typo (Refused)."""
    if problem := unknown_task(delayq, task, scheduled):
        raise Refused(f"{problem} --force allows a task that this app does not have.")


def unknown_task(delayq: DelayQ, task: str, scheduled: set[str] | None = None) -> str:
    """Return that the app has no task of this name, and none is scheduled; ``""`` if it has."""
    of_app = known_tasks(delayq)
    known = (of_app or set()) | (scheduled or set())
    if of_app is None or task in known:
        return ""
    also = "" if scheduled is None else ", and none is scheduled"
    return f"this app has no task {spelled(task)}{also}{did_you_mean(task, known) or '.'}"


def check_priority(delayq: DelayQ, filter: Filter) -> None:
    """Refuse a priority that no entry has (click.UsageError)."""
    if filter.priority is None:
        return
    found = layouts(delayq.session.stores.registry())
    steps = {step for layout in found.values() for step in layout.steps}
    if steps and filter.priority not in steps:
        known = ", ".join(map(str, sorted(steps)))
        raise click.UsageError(
            f"--priority {filter.priority}: there are the steps {known}; a task is in the step of "
            "its priority or the one below"
        )
