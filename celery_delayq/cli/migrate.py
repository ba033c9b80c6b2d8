"""Moving over and back, with progress."""

from __future__ import annotations

import click
from celery import Celery
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from celery_delayq.admin.stock_migration import Moved, from_stock, to_stock
from celery_delayq.app import DelayQ
from celery_delayq.cli import Refused
from celery_delayq.cli.words import spelled


def run(delayq: DelayQ, *, give_back: bool, dry_run: bool, yes: bool) -> None:
    """Migrate and print what went where; exits with 1 when something could not be moved."""
    app = delayq.app
    console = Console(highlight=False)
    running = _running_workers(app)
    if running and not yes:
        if not dry_run:
            raise Refused(running)
        refused = Text("Without --dry-run this is refused:", "yellow")
        console.print(Text.assemble(refused, f" {running}"))
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    steps = (
        to_stock(app, dry_run=dry_run, spare_living=bool(running) and yes)
        if give_back
        else from_stock(app, dry_run=dry_run)
    )
    moved = Moved(total=0)
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("to stock" if give_back else "from stock", total=None)
        for moved in steps:
            progress.update(bar, total=moved.total, completed=moved.done)
    console.print(_summary(moved, dry_run=dry_run))
    if moved.left or moved.held:
        raise click.exceptions.Exit(1)


def _running_workers(app: Celery) -> str:
    """Return why to stop the workers that run, "" for none: each of their tasks would run twice."""
    replies = app.control.ping(timeout=1.0)
    names = sorted(name for reply in replies for name in reply)
    if not names:
        return ""
    return (
        f"{len(names)} worker(s) answer: {', '.join(map(spelled, names))}. Stop them first: what "
        "they hold would run twice. If they serve other queues only, go on with --yes."
    )


def _summary(moved: Moved, *, dry_run: bool) -> str:
    head = "would move" if dry_run else "moved"
    parts = [f"{moved.scheduled:,} to the schedule", f"{moved.ready:,} to ready"]
    if moved.gone:
        parts.append(f"{moved.gone:,} were gone meanwhile")
    if moved.left:
        parts.append(f"{moved.left:,} unreadable or without a queue were left where they are")
    if moved.held:
        parts.append(
            f"{moved.held:,} are held by processes that were heard of late; repeat this when they "
            "have ended"
        )
    return f"{head}: {', '.join(parts)}"
