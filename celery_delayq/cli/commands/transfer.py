"""``export`` and ``import``: the schedule to files and SQL databases, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import click
from rich.text import Text

from celery_delayq.app import DelayQ
from celery_delayq.cli import options, screen
from celery_delayq.cli.command import command
from celery_delayq.cli.commands.show import ENTRIES
from celery_delayq.cli.items import ItemKind
from celery_delayq.cli.search import note_unknown, prepare_search
from celery_delayq.cli.text import number_of, shown_id
from celery_delayq.model.scheduled import Filter
from celery_delayq.transfer.results import Exported, Imported, ImportOutcome, TransferProgress
from celery_delayq.utils.text import spelled

#: Most entries that are listed with the reason why they were left out.
MAX_SHOWN_ENTRIES = 20

_OUTCOME_TEXTS: dict[ImportOutcome, str] = {
    "scheduled": "scheduled",
    "ready": "ready, since they are overdue",
    "restored": "put back",
    "duplicate": "left as they are: they are there already",
    "kept": "not scheduled: another task has their unique key",
    "full": "not scheduled: their queue is full (max_scheduled)",
    "overdue": "skipped: they are overdue",
    "filtered": "not selected by the filter",
    "unknown": "not selected: their arguments are not known",
    "refused": "refused",
}


@command()
@options.target_argument
@options.with_filter
@options.flag("--prune", help="Remove from the database what is not scheduled any more.")
@options.json_option
def export(delayq: DelayQ, target: str, filter: Filter, prune: bool) -> bool:
    """Write the schedule to a file or a SQL database.

    Redis is not changed. TARGET is a path (JSON Lines, gzipped if it ends in .gz), - for standard
    output, or the URL of a database: sqlite:///path or postgresql://user:password@host/name. A
    file appears when it is complete. Exits with 1 when an entry could not be read; all others are
    written.

    \b
    Examples:
      celery -A shop delayq export schedule.jsonl
      celery -A shop delayq export - --queue mail | gzip > mail.jsonl.gz
      celery -A shop delayq export postgresql://backup@db/shop --prune
    """
    screen.check_queue(delayq, filter.queue)
    screen.check_priority(delayq, filter)
    prepare_search(delayq, filter)
    # Standard output may be the target.
    to_stdout = target == "-"
    with progress_of_report() as show:
        report = delayq.export_to(target, filter, prune=prune, progress=show)
    if screen.is_json():
        screen.print_json(report.as_dict(), stderr=to_stdout)
    else:
        _print_exported(report, prune=prune, stderr=to_stdout)
    note_unknown(ENTRIES, report.unknown)
    if not report.entries:
        screen.note_unknown_names(delayq, filter)
    return not report.left_out


@command("import")
@options.source_argument
@options.with_filter
@options.option(
    "--overdue",
    type=click.Choice(["run", "skip"]),
    default="run",
    help="What to do with entries that should have run by now; run by default.",
)
@options.dry_run_option
@options.json_option
def import_(
    delayq: DelayQ,
    source: str,
    filter: Filter,
    overdue: Literal["run", "skip"],
    dry_run: bool,
) -> bool:
    """Schedule exported entries.

    SOURCE is as for export; - is standard input. May be repeated: entries that exist are left as
    they are. Entries that have run since the export would run again; --due-from leaves them out.
    Exits with 1 when a line was refused or a queue is full; all else is scheduled.

    \b
    Examples:
      celery -A shop delayq import schedule.jsonl --dry-run
      celery -A shop delayq import schedule.jsonl --due-from 2030-01-31T09:00:00Z
      celery -A shop delayq import postgresql://backup@db/shop --overdue skip
      celery -A old delayq export - | celery -A new delayq import -
    """
    prepare_search(delayq, filter)
    with progress_of_report() as show:
        report = delayq.import_from(source, filter, overdue=overdue, dry_run=dry_run, progress=show)
    note_unknown(ENTRIES, report.outcomes["unknown"])
    if report.looked == report.outcomes["filtered"]:
        screen.note_unknown_names(delayq, filter)
    return print_imported(report, ENTRIES)


@contextmanager
def progress_of_report() -> Iterator[Callable[[TransferProgress], None]]:
    """Show a bar on a terminal, and yield a function that takes the report so far."""
    with screen.progress_bar() as bar:
        yield lambda report: bar(report.total, report.looked)


def print_imported(report: Imported, kind: ItemKind) -> bool:
    """Print the outcomes; return whether everything could be imported."""
    if screen.is_json():
        screen.print_json(report.as_dict())
    else:
        refusals = report.refusals[:MAX_SHOWN_ENTRIES]
        lines = [Text(f"line {line:,}: {spelled(reason)}") for line, reason in refusals]
        screen.print_list(lines, report.outcomes["refused"])
        output, total = screen.console(), kind.number(report.looked)
        output.print(f"{total}, a dry run:" if report.dry_run else f"{total}:")
        for outcome, words in _OUTCOME_TEXTS.items():
            if number := report.outcomes[outcome]:
                output.print(f"{number:>12,} {words}")
    return not report.missing


def _print_exported(report: Exported, *, prune: bool, stderr: bool) -> None:
    lines = [
        Text(f"{spelled(queue)} {shown_id(id)}: {spelled(reason)}")
        for queue, id, reason in report.unreadable[:MAX_SHOWN_ENTRIES]
    ]
    screen.print_list(lines, report.left_out, stderr=stderr)
    text = f"{ENTRIES.number(report.entries)} exported"
    if prune:
        text += f", {number_of(report.pruned, 'row', 'rows')} of others removed"
    if report.left_out:
        text += f", {report.left_out:,} left out: unreadable"
    screen.console(stderr=stderr).print(f"{text}.")
