"""Taking over the entries of other schedulers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import click
from rich.text import Text

from celery_delayq.app import DelayQ
from celery_delayq.cli.screen import console_of, schedule_text
from celery_delayq.cli.words import number_of, quoted, spelled
from celery_delayq.periodic.importers import FoundEntry, Result, take_over
from celery_delayq.periodic.serialization import describe
from celery_delayq.transfer.results import sqlalchemy_needed

_STYLES: dict[Result, str] = {
    "added": "green",
    "replaced": "green",
    "kept": "",
    "skipped": "dim",
    "refused": "red",
}


def run(
    ctx: click.Context,
    delayq: DelayQ,
    source: str,
    place: str | None,
    *,
    replace: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Take over all, and tell what became of each; exits with 1 when one was refused."""
    console = console_of(ctx)
    counts: Counter[Result] = Counter()
    found = take_over(
        delayq.session, _entries(delayq, source, place), dry_run=dry_run, replace=replace
    )
    for entry, result in found:
        counts[result] += 1
        when = None if entry.definition is None else describe(entry.definition.schedule)
        if as_json:
            told = {"name": entry.name, "result": result, "when": when, "why": entry.problem}
            print(json.dumps({**told, "enabled": entry.enabled}))
            continue
        text = Text(result, _STYLES[result]).append(f"  {quoted(entry.name)}", "default")
        if entry.definition is not None:
            text.append(f"  {spelled(schedule_text(entry.definition.schedule))}", "dim")
        if not entry.enabled and result in ("added", "replaced"):
            text.append("  paused", "yellow")
        if entry.problem is not None:
            text.append(f"  {spelled(entry.problem)}", "default")
        console.print(text, soft_wrap=True)
    if not as_json:
        console.print(_summary(counts, dry_run=dry_run), soft_wrap=True)
    if counts["refused"]:
        raise click.exceptions.Exit(1)


def _summary(counts: Counter[Result], *, dry_run: bool) -> str:
    said = number_of(counts.total(), "entry", "entries")
    parts = ", ".join(f"{number:,} {result}" for result, number in counts.items())
    end = " A dry run, nothing was changed." if dry_run else ""
    return f"{said}{': ' if parts else ''}{parts}.{end}"


def _entries(delayq: DelayQ, source: str, place: str | None) -> Iterator[FoundEntry]:
    # Each needs what the others do not, such as SQLAlchemy.
    app = delayq.app
    if source == "beat":
        from celery_delayq.periodic.importers import beat

        return beat.entries(app, place)
    if source == "redbeat":
        from celery_delayq.periodic.importers import redbeat

        return redbeat.entries(app, place)
    if source == "list":
        from celery_delayq.periodic import exported

        return exported.entries(app, str(place))
    with sqlalchemy_needed():
        from celery_delayq.periodic.importers import django

    return django.entries(app, str(place))
