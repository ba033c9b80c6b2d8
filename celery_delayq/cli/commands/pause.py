"""``pause``, ``resume`` and ``paused``."""

from __future__ import annotations

import click
from rich.text import Text

from celery_delayq.app import DelayQ
from celery_delayq.cli import complete, screen
from celery_delayq.cli.command import command
from celery_delayq.cli.options import json_option, name_option
from celery_delayq.utils.text import spelled

queue_option = name_option(
    "--queue", metavar="QUEUE", shell_complete=complete.queues, help="The queue."
)
task_option = name_option("--task", metavar="TASK", shell_complete=complete.tasks, help="The task.")


@command()
@queue_option
@task_option
@json_option
def pause(delayq: DelayQ, queue: str | None, task: str | None) -> None:
    """Start nothing of a queue or a task until it is resumed.

    Tasks that a worker has taken already still run; new ones are kept. Pausing twice changes
    nothing and exits with 0.

    \b
    Examples:
      celery -A shop delayq pause --queue mail
      celery -A shop delayq pause --task shop.remind
    """
    _set_paused(delayq, queue, task, paused=True)


@command()
@queue_option
@task_option
@json_option
def resume(delayq: DelayQ, queue: str | None, task: str | None) -> None:
    """Resume a paused queue or task.

    \b
    Examples:
      celery -A shop delayq resume --queue mail
      celery -A shop delayq resume --task shop.remind
    """
    _set_paused(delayq, queue, task, paused=False)


def _set_paused(delayq: DelayQ, queue: str | None, task: str | None, *, paused: bool) -> None:
    """Pause or resume, and print whether something changed."""
    if (queue is None) == (task is None):
        raise click.UsageError("give either --queue or --task")
    changed = (delayq.pause if paused else delayq.resume)(queue=queue, task=task)
    screen.note_unknown_queue(delayq, queue, stderr=True)
    if task is not None and (paused or not changed):
        screen.note_unknown_task(delayq, task, screen.scheduled_tasks(delayq))
    if screen.is_json():
        screen.print_json({"queue": queue, "task": task, "paused": paused, "changed": changed})
        return
    name = f"Task {spelled(task or '')}" if queue is None else f"Queue {spelled(queue)}"
    if paused:
        state = "is paused" if changed else "is paused already"
    else:
        state = "is resumed" if changed else "was not paused"
    screen.console().print(Text(f"{name} {state}."), soft_wrap=True)


@command()
@json_option
def paused(delayq: DelayQ) -> None:
    """Show which queues and tasks are paused, and since when.

    \b
    Examples:
      celery -A shop delayq paused
      celery -A shop delayq paused --json | jq -r '.queues | keys[]'
    """
    found = delayq.paused()
    kinds = {"queue": found.queues, "task": found.tasks}
    if screen.is_json():
        screen.print_json(
            {
                f"{kind}s": {name: since.isoformat() for name, since in names.items()}
                for kind, names in kinds.items()
            }
        )
        return
    output = screen.console()
    if not any(kinds.values()):
        output.print("Nothing is paused.")
        return
    now = screen.now_of(delayq)
    table = screen.new_table("what", "name", "since")
    for kind, names in kinds.items():
        for name, since in names.items():
            table.add_row(kind, Text(spelled(name)), screen.time_text(since, now))
    output.print(table)
