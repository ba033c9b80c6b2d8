"""What commands write on: the terminal, and what a filter means in words."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from celery_delayq.app import DelayQ
from celery_delayq.cli.base import Refused
from celery_delayq.cli.words import number_of, spelled
from celery_delayq.entries import Filter, Outcome
from celery_delayq.store import layouts


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


def known_queues(delayq: DelayQ) -> set[str]:
    """Return the queues of the app and those that were ever scheduled on."""
    declared = () if delayq.app is None else delayq.app.amqp.queues
    return {*delayq.store.registry(), *declared}


def note_unknown_queue(delayq: DelayQ, queue: str | None, console: Console) -> None:
    """Say so if a queue may be a slip of the pen."""
    known = known_queues(delayq)
    if queue is not None and queue not in known:
        names = ", ".join(spelled(name) for name in sorted(known)) or "none"
        console.print(
            Text(f"There is no queue {spelled(queue)} in Redis or in the app; known: {names}")
        )


def check_priority(delayq: DelayQ, filter: Filter) -> None:
    """Refuse a priority that no entry can have (Refused)."""
    if filter.priority is None:
        return
    found = layouts(delayq.store.registry())
    steps = {step for layout in found.values() for step in layout.steps}
    if steps and filter.priority not in steps:
        known = ", ".join(map(str, sorted(steps)))
        raise Refused(
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
