"""``stats``: counts by queue and task."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from rich import box
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from celery_delayq.admin.rabbitmq.broker import RabbitMQStats
from celery_delayq.admin.stats import QueueStats, Stats
from celery_delayq.app import DelayQ
from celery_delayq.cli import screen
from celery_delayq.cli.command import command
from celery_delayq.cli.options import json_option
from celery_delayq.cli.text import number_of
from celery_delayq.utils.text import span, spelled


@command()
@json_option
def stats(delayq: DelayQ) -> bool:
    """Count scheduled, ready, leased and dead tasks, by queue.

    Where a master of a Redis Cluster is away, it counts the others, says which hash tags are not
    counted, and exits with 1. So it does for a queue with a key of a wrong type.

    \b
    Examples:
      celery -A shop delayq stats
      celery -A shop delayq stats --json | jq .overdue
    """
    found = delayq.admin.stats(partial=True)
    if screen.is_json():
        screen.print_json(found.as_dict())
    else:
        _print(found)
    return not (found.away or found.broken)


def _print(found: Stats) -> None:
    output = screen.console()
    if isinstance(found, RabbitMQStats):
        output.print(_rabbitmq_table(found))
        output.print(f"{found.scheduled:,} scheduled, {found.unroutable:,} unroutable, ", end="")
        output.print(number_of(found.dead, "dead letter", "dead letters"))
        return
    is_file = output.width == screen.FILE_COLUMNS
    output.print(_wide_table(found.queues) if is_file else queues_table(found.queues))
    output.print(_tasks_table(found))
    if found.periodic:
        output.print(number_of(found.periodic, "periodic entry", "periodic entries"))
    if found.used_memory is not None:
        limit = f" of {decimal(found.max_memory)}" if found.max_memory else ""
        output.print(f"Redis uses {decimal(found.used_memory)}{limit}")
    broken = [f"{name}: {why}; fsck tells more" for name, why in found.broken.items()]
    for each in (*found.away, *broken):
        output.print(Text(f"not counted: {spelled(str(each))}", "bold red"), soft_wrap=True)


def queues_table(queues: Sequence[QueueStats]) -> Table:
    """Return a table of 80 columns: entries that a limit holds are below the paused ones."""
    # Ten columns must fit 80 characters: no room for frames.
    table = Table(title="Queues", box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    table.add_column("queue", overflow="fold")
    titles = ("scheduled", "overdue", "paused\nheld", "ready", "leased", "dead")
    for title in (*titles, "oldest\nwaits", "next\ndue in", "memory"):
        table.add_column(title, justify="right", overflow="fold")
    for queue in queues:
        name = Text(spelled(queue.name))
        scheduled, overdue, paused, held, *others = _numbers(queue)
        table.add_row(
            name.append("\npaused", "yellow") if queue.is_paused else name,
            *(scheduled, overdue, f"{paused}\n{held}" if queue.held else paused, *others),
        )
    return table


def _wide_table(queues: Sequence[QueueStats]) -> Table:
    """Return a table in which each queue is one line."""
    table = Table(title="Queues", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("queue")
    table.add_column("state")
    titles = ("scheduled", "overdue", "paused", "held", "ready", "leased", "dead")
    for title in (*titles, "oldest waits", "next due in", "memory"):
        table.add_column(title, justify="right")
    for queue in queues:
        state = "paused" if queue.is_paused else "-"
        table.add_row(Text(spelled(queue.name)), state, *_numbers(queue))
    return table


def _numbers(queue: QueueStats) -> Iterator[str]:
    for name in ("scheduled", "overdue", "paused", "held", "ready", "leased", "dead"):
        yield f"{getattr(queue, name):,}"
    yield span(queue.oldest_age) if queue.oldest_age >= 60 else f"{queue.oldest_age:.1f}s"
    yield _due_in(queue)
    yield "-" if queue.memory is None else decimal(queue.memory)


def _rabbitmq_table(stats: RabbitMQStats) -> Table:
    table = screen.new_table("queue", "ready", title="Queues")
    for queue in stats.queues:
        table.add_row(Text(spelled(queue.name)), f"{queue.ready:,}")
    return table


def _tasks_table(stats: Stats) -> Table:
    table = screen.new_table("queue", "task", "scheduled", "ready", title="Tasks")
    for queue in stats.queues:
        for task in sorted({*queue.scheduled_tasks, *queue.ready_tasks}):
            table.add_row(
                Text(spelled(queue.name)),
                Text(spelled(task)),
                f"{queue.scheduled_tasks.get(task, 0):,}",
                f"{queue.ready_tasks.get(task, 0):,}",
            )
    return table


def _due_in(queue: QueueStats) -> str:
    """Return the time until the next entry is due; "now" if the entry is overdue."""
    if queue.next_due is None:
        return "-"
    seconds = round(queue.next_due - time.time())
    return span(seconds) if seconds > 0 else "now"
