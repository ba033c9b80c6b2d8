"""Numbers as tables, or as JSON."""

from __future__ import annotations

import json
import time

from rich import box
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from celery_delayq.admin.stats import QueueStats, Stats
from celery_delayq.app import DelayQ
from celery_delayq.cli.words import number_of, span, spelled


def show(delayq: DelayQ, *, as_json: bool) -> None:
    """Print the numbers of all queues."""
    stats = delayq.stats()
    if as_json:
        print(json.dumps(stats.as_dict()))
        return
    console = Console(highlight=False)
    console.print(queues_table(stats))
    console.print(_tasks(stats))
    if stats.periodic:
        console.print(number_of(stats.periodic, "periodic entry", "periodic entries"))
    if stats.used_memory is not None:
        limit = f" of {decimal(stats.max_memory)}" if stats.max_memory else ""
        console.print(f"Redis uses {decimal(stats.used_memory)}{limit}")


def queues_table(stats: Stats) -> Table:
    """Return one row for each queue."""
    # Ten columns in 80: nothing is spent on frames.
    table = Table(title="Queues", box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    table.add_column("queue", overflow="fold")
    for name in ("scheduled", "overdue", "paused", "ready", "leased", "dead"):
        table.add_column(name, justify="right", overflow="fold")
    for name in ("oldest\nwaits", "next\ndue in", "memory"):
        table.add_column(name, justify="right", overflow="fold")
    for queue in stats.queues:
        table.add_row(
            Text(spelled(queue.name)),
            f"{queue.scheduled:,}",
            f"{queue.overdue:,}",
            f"{queue.paused:,}",
            f"{queue.ready:,}",
            f"{queue.leased:,}",
            f"{queue.dead:,}",
            span(queue.oldest_age) if queue.oldest_age >= 60 else f"{queue.oldest_age:.1f}s",
            _moment(queue),
            "-" if queue.memory is None else decimal(queue.memory),
        )
    return table


def _tasks(stats: Stats) -> Table:
    table = Table(title="Tasks", box=box.SIMPLE_HEAD)
    table.add_column("queue", overflow="fold")
    table.add_column("task", overflow="fold")
    table.add_column("scheduled", justify="right")
    table.add_column("ready", justify="right")
    for queue in stats.queues:
        for task in sorted({*queue.scheduled_tasks, *queue.ready_tasks}):
            table.add_row(
                Text(spelled(queue.name)),
                Text(spelled(task)),
                f"{queue.scheduled_tasks.get(task, 0):,}",
                f"{queue.ready_tasks.get(task, 0):,}",
            )
    return table


def _moment(queue: QueueStats) -> str:
    """Return how long until the next entry is due, "now" when it should have been promoted."""
    if queue.next_due is None:
        return "-"
    seconds = round(queue.next_due - time.time())
    return span(seconds) if seconds > 0 else "now"
