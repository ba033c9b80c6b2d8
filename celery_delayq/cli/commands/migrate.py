"""``migrate``: move from stock Celery, and back."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import click
from rich.text import Text

from celery_delayq.admin.exit_codes import Refused
from celery_delayq.admin.rabbitmq.native_migration import from_native, to_native
from celery_delayq.admin.stock_migration import (
    Moved,
    check_single,
    etas_in_lists,
    from_stock,
    living_processes,
    to_stock,
)
from celery_delayq.app import DelayQ
from celery_delayq.cli import screen
from celery_delayq.cli.command import command
from celery_delayq.cli.options import flag, option
from celery_delayq.cli.text import number_of, stamp
from celery_delayq.utils.text import spelled

#: Notes about tasks with a future ETA in ready lists, after a move to this package and to stock.
_LEFT_TO_NEW_WORKERS = (
    "This command leaves them there: the first new worker that takes one moves it to the schedule."
)
_LEFT_TO_STOCK_WORKERS = (
    "They stay there: a stock worker that takes one keeps it in memory until its ETA."
)
#: A stock worker writes nothing in Redis that tells whether it runs.
_STOCK_WARM_SHUTDOWN = (
    "A stock worker that is shutting down does not answer, and looks like one that has ended. "
    "Wait until the processes of all stock workers have ended: their tasks would run twice."
)


@command()
@option(
    "--from",
    "source",
    type=click.Choice(["stock", "native"]),
    help="Take over: unacked tasks of stopped stock workers on Redis, or the tasks in Celery's "
    "native delay queues on RabbitMQ.",
)
@option(
    "--to",
    "target",
    type=click.Choice(["stock", "native"]),
    help="Give all back: the schedule as stock messages, and the tasks of stopped workers; on "
    "RabbitMQ the delayed tasks, as stock Celery sends them.",
)
@flag("--dry-run", help="Count, change nothing.")
@flag("--yes", help="Go on although workers run. Tasks that they have leased stay with them.")
def migrate(
    delayq: DelayQ, source: str | None, target: str | None, dry_run: bool, yes: bool
) -> bool:
    """Move an app over from stock Celery, or back.

    No drain is needed. On Redis (stock) stop the workers first; producers may go on. On RabbitMQ
    (native) workers may go on; switch the producers first. It may be interrupted and repeated.

    \b
    Examples:
      celery -A shop delayq migrate --from stock --dry-run
      celery -A shop delayq migrate --from stock
      celery -A shop delayq migrate --to stock
      celery -A shop delayq migrate --from native
    """
    if (source is None) == (target is None):
        raise click.UsageError("give either --from or --to, with stock or native")
    session, output = delayq.session, screen.console()
    if "native" in (source, target):
        steps = (from_native if source else to_native)(delayq.app, dry_run=dry_run)
        moved = _run(steps, f"{'from' if source else 'to'} native")
        return _report(
            moved, [number_of(moved.scheduled, "delayed task", "delayed tasks")], dry_run
        )
    if session.on_rabbitmq:
        raise click.UsageError("the broker is RabbitMQ: give --from native or --to native")
    check_single(session)
    running = _running_workers(delayq)
    if target is not None:
        running = " ".join(filter(None, [running, _processes_with_leases(delayq)]))
    if running and not yes:
        if not dry_run:
            raise Refused(running)
        refused = Text("Without --dry-run this is refused:", "yellow")
        output.print(Text.assemble(refused, f" {running}"))
    if target is None:
        steps, description = from_stock(session, dry_run=dry_run), "from stock"
        output.print(_STOCK_WARM_SHUTDOWN)
    else:
        steps = to_stock(session, dry_run=dry_run, spare_living=not dry_run or yes)
        description = "to stock"
    etas = etas_in_lists(session)  # counted first: tasks moved to stock come into the same lists
    moved = _run(steps, description)
    if etas:
        output.print(
            f"{number_of(etas, 'task', 'tasks')} with a future ETA "
            f"{'is' if etas == 1 else 'are'} in the ready lists, where stock producers put such "
            f"tasks. {_LEFT_TO_STOCK_WORKERS if source is None else _LEFT_TO_NEW_WORKERS}"
        )
    return _report(
        moved, [f"{moved.scheduled:,} to the schedule", f"{moved.ready:,} to ready"], dry_run
    )


def _run(steps: Iterator[Moved], description: str) -> Moved:
    moved = Moved(total=0)
    with screen.progress_bar(description=description) as bar:
        for moved in steps:
            bar(moved.total, moved.done)
    return moved


def _running_workers(delayq: DelayQ) -> str:
    """Return why the answering workers must be stopped; "" if no worker answers."""
    with delayq.session.connection() as connection:
        replies = delayq.app.control.ping(timeout=1.0, connection=connection)
    names = sorted(name for reply in replies for name in reply)
    if not names:
        return ""
    return (
        f"{len(names)} worker(s) answer: {', '.join(map(spelled, names))}. Stop them first: "
        "their tasks would run twice. If they serve other queues only, go on with --yes."
    )


def _processes_with_leases(delayq: DelayQ) -> str:
    """Return why processes with leased tasks must end first; "" if there are none."""
    living = living_processes(delayq.session)
    if not living:
        return ""
    now = screen.now_of(delayq)
    each = [
        f"{spelled(its.worker_id)} ({number_of(its.messages, 'task', 'tasks')} of "
        f"{', '.join(map(spelled, its.queues))}; at the latest until "
        f"{stamp((now + timedelta(seconds=its.seconds)).replace(microsecond=0))}, if it was killed)"
        for its in living
    ]
    return (
        f"{number_of(len(living), 'worker has', 'workers have')} leased tasks: {', '.join(each)}. "
        "Wait until they have ended: their tasks would run twice. A worker that shuts down does "
        "not answer, and first ends its running tasks."
    )


def _report(moved: Moved, parts: list[str], dry_run: bool) -> bool:
    if moved.gone:
        parts.append(f"{moved.gone:,} were gone meanwhile")
    if moved.unmovable:
        parts.append(f"{moved.unmovable:,} unreadable or without a queue were left where they are")
    if moved.leased:
        parts.append(
            f"{moved.leased:,} belong to processes that sent a heartbeat of late; repeat this when "
            "they have ended"
        )
    screen.console().print(f"{'would move' if dry_run else 'moved'}: {', '.join(parts)}")
    return not (moved.unmovable or moved.leased)
