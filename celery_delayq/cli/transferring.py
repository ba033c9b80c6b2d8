"""Exporting and importing, with a bar, and what came of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from celery_delayq.app import DelayQ
from celery_delayq.cli.base import Refused
from celery_delayq.cli.control import ENTRIES
from celery_delayq.cli.replaying import DEAD_LETTERS
from celery_delayq.cli.screen import Things, check_priority, console_of, known_queues
from celery_delayq.cli.words import number_of, shown_id, spelled
from celery_delayq.model.dead_letter import DeadFilter
from celery_delayq.model.scheduled import Filter
from celery_delayq.transfer.results import Archived, Became, Exported, Imported, Report

#: Of how many entries it is told why they were passed over.
SHOWN = 20

_WORDS: dict[Became, str] = {
    "scheduled": "scheduled",
    "ready": "ready, since they are overdue",
    "restored": "put back",
    "duplicate": "left as they are: they are there already",
    "kept": "not scheduled: another task has their unique key",
    "full": "not scheduled: their queue is full (max_scheduled)",
    "overdue": "passed over: they are overdue",
    "filtered": "not meant by the filter",
    "refused": "refused",
}


def export(
    ctx: click.Context,
    delayq: DelayQ,
    target: str,
    filter: Filter,
    *,
    prune: bool,
    as_json: bool,
) -> None:
    """Export and tell what was written; exits with 1 when something could not be."""
    _check_queue(delayq, filter.queue)
    check_priority(delayq, filter)
    # Standard output may be what is written to.
    to_stdout = target == "-"
    with _bar(ctx, hidden=as_json) as show:
        report = delayq.export_to(target, filter, prune=prune, progress=show)
    if as_json:
        print(json.dumps(report.as_dict()), file=sys.stderr if to_stdout else sys.stdout)
    else:
        _say_exported(console_of(ctx, stderr=to_stdout), report, prune=prune)
    if report.left_out:
        raise click.exceptions.Exit(1)


def _say_exported(console: Console, report: Exported, *, prune: bool) -> None:
    for queue, id, reason in report.unreadable[:SHOWN]:
        console.print(Text(f"{spelled(queue)} {shown_id(id)}: {spelled(reason)}"), soft_wrap=True)
    _say_more(console, report.left_out)
    text = f"{number_of(report.entries, 'entry', 'entries')} exported"
    if prune:
        text += f", {number_of(report.pruned, 'row', 'rows')} of others removed"
    if report.left_out:
        text += f", {report.left_out:,} left out: unreadable"
    console.print(f"{text}.")


def import_(
    ctx: click.Context,
    delayq: DelayQ,
    source: str,
    filter: Filter,
    *,
    overdue: Literal["run", "skip"],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Import and tell what became of the entries; exits with 1 when some could not be taken."""
    with _bar(ctx, hidden=as_json) as show:
        report = delayq.import_from(source, filter, overdue=overdue, dry_run=dry_run, progress=show)
    _say_imported(ctx, report, ENTRIES, as_json=as_json)


def export_dead(
    ctx: click.Context, delayq: DelayQ, target: str, filter: DeadFilter, *, as_json: bool
) -> None:
    """Export dead letters and tell what was written."""
    _check_queue(delayq, filter.queue)
    with _bar(ctx, hidden=as_json) as show:
        report = delayq.export_dead(target, filter, progress=show)
    _say_archived(ctx, report, "exported", as_json=as_json, to_stdout=target == "-")


def archive_dead(
    ctx: click.Context,
    delayq: DelayQ,
    url: str | None,
    filter: DeadFilter,
    *,
    older_than: float,
    as_json: bool,
) -> None:
    """Archive dead letters and tell what was moved."""
    _check_queue(delayq, filter.queue)
    with _bar(ctx, hidden=as_json) as show:
        report = delayq.archive_dead(url, filter, older_than=older_than, progress=show)
    _say_archived(ctx, report, "archived", as_json=as_json)


def _say_archived(
    ctx: click.Context, report: Archived, done: str, *, as_json: bool, to_stdout: bool = False
) -> None:
    if as_json:
        print(json.dumps(report.as_dict()), file=sys.stderr if to_stdout else sys.stdout)
        return
    text = f"{DEAD_LETTERS.number(report.dead_letters)} {done}"
    if report.new != report.dead_letters:
        text += f", {report.dead_letters - report.new:,} of them were there already"
    if report.gone:
        text += f"; {report.gone:,} were replayed or moved by others meanwhile"
    console_of(ctx, stderr=to_stdout).print(f"{text}.")


def import_dead(
    ctx: click.Context,
    delayq: DelayQ,
    source: str | None,
    filter: DeadFilter,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Put dead letters back and tell what became of them, as :func:`import_`."""
    with _bar(ctx, hidden=as_json) as show:
        report = delayq.import_dead(source, filter, dry_run=dry_run, progress=show)
    _say_imported(ctx, report, DEAD_LETTERS, as_json=as_json)


def _say_imported(ctx: click.Context, report: Imported, things: Things, *, as_json: bool) -> None:
    """Tell what became of each; exits with 1 when something could not be taken."""
    console = console_of(ctx)
    if as_json:
        print(json.dumps(report.as_dict()))
    else:
        for line, reason in report.refusals[:SHOWN]:
            console.print(Text(f"line {line:,}: {spelled(reason)}"), soft_wrap=True)
        _say_more(console, report.outcomes["refused"])
        total = things.number(report.looked)
        console.print(f"{total}, a dry run:" if report.dry_run else f"{total}:")
        for outcome, words in _WORDS.items():
            if number := report.outcomes[outcome]:
                console.print(f"{number:>12,} {words}")
    if report.missing:
        raise click.exceptions.Exit(1)


def _check_queue(delayq: DelayQ, queue: str | None) -> None:
    """Refuse a queue that may be a slip of the pen (Refused)."""
    known = known_queues(delayq)
    if queue is not None and queue not in known:
        names = ", ".join(spelled(name) for name in sorted(known)) or "none"
        raise Refused(f"no queue {spelled(queue)} in Redis or in the app; known: {names}")


def _say_more(console: Console, number: int) -> None:
    if number > SHOWN:
        console.print(f"… and {number - SHOWN:,} more")


@contextmanager
def _bar(ctx: click.Context, *, hidden: bool) -> Iterator[Callable[[Report], None]]:
    """Show a bar on a terminal, where nothing else is written to."""
    console = console_of(ctx, stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(
        *columns,
        TimeRemainingColumn(),
        console=console,
        disable=hidden or not console.is_terminal,
        transient=True,
    ) as progress:
        bar = progress.add_task("", total=None)

        def show(report: Report) -> None:
            # Of what comes meanwhile, more may be met than there was at first.
            total = None if report.total is None else max(report.total, report.looked)
            progress.update(bar, total=total, completed=report.looked)

        yield show
