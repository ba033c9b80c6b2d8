"""What does not fit together, as a table or as JSON."""

from __future__ import annotations

import json

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from celery_delayq.admin.findings import KINDS, Finding, Report
from celery_delayq.admin.repair import check
from celery_delayq.app import DelayQ
from celery_delayq.cli import Refused
from celery_delayq.cli.screen import console_of, new_table
from celery_delayq.cli.words import spelled
from celery_delayq.settings import Settings


def run(delayq: DelayQ, *, queue: str | None, repair: bool, as_json: bool) -> None:
    """Check, print what was found, and exit with 1 when something is left wrong."""
    settings = Settings.from_options(delayq.app.conf.broker_transport_options)
    console = console_of(click.get_current_context())
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    report = Report()
    with Progress(*columns, console=console, disable=as_json) as progress:
        bar = progress.add_task("repair" if repair else "check", total=None)
        for report in check(delayq.store, settings, queue=queue, repair=repair):
            # Of what comes and goes meanwhile, more may be met than there was at first.
            progress.update(bar, total=max(report.total, report.done), completed=report.done)
    if queue is not None and queue not in {*report.queues, *delayq.app.amqp.queues}:
        known = ", ".join(map(spelled, sorted(delayq.store.registry()))) or "none"
        raise Refused(
            f"no queue {queue!r} in the registry, in Redis or in the app; known are: {known}"
        )
    if as_json:
        print(json.dumps(report.as_dict()))
    else:
        if report.findings:
            console.print(_table(report))
        for note in report.notes:
            console.print(Text(spelled(note)))
        console.print(_summary(report, repair=repair))
    if report.left:
        raise click.exceptions.Exit(1)


def _table(report: Report) -> Table:
    table = new_table("Findings")
    table.show_lines = True
    table.add_column("queue", overflow="fold", max_width=20)  # an id fits beside it at 80 columns
    table.add_column("found", justify="right")
    table.add_column("repaired", justify="right")
    table.add_column("what", overflow="fold")
    for finding in report.findings:
        table.add_row(
            Text(spelled(finding.queue)),
            f"{finding.found:,}",
            f"{finding.repaired:,}",
            _what(finding),
        )
    return table


def _what(finding: Finding) -> Text:
    """Return what is wrong, what is done about it, and for which ids."""
    kind = KINDS[finding.kind]
    text = Text(kind.what)
    if kind.harmless:
        text.append(" (harmless)")
    text.append(f"\nrepair: {kind.repairing}")
    more = ", …" if finding.found > len(finding.examples) else ""
    return text.append(f"\n{', '.join(map(spelled, finding.examples))}{more}", style="dim")


def _summary(report: Report, *, repair: bool) -> str:
    where = f"{len(report.queues):,} queue(s), {report.done:,} members of keys looked at"
    if not report.found:
        return f"{where}: nothing wrong"
    found = f"{where}: {report.found:,} finding(s)"
    return f"{found}, {report.repaired:,} repaired" if repair else f"{found}; see --repair"
