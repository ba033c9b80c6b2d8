"""``periodic import``: import entries of other schedulers, or a backup."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from importlib import import_module

import click
from celery import Celery
from rich.text import Text

from celery_delayq.app import DelayQ
from celery_delayq.cli import screen
from celery_delayq.cli.command import command
from celery_delayq.cli.options import argument, dry_run_option, flag, json_option, option
from celery_delayq.cli.text import number_of, quoted
from celery_delayq.periodic.importers import FoundEntry, Result, take_over
from celery_delayq.periodic.serialization import describe
from celery_delayq.transfer.results import sqlalchemy_needed
from celery_delayq.utils.text import spelled

#: The module that reads the entries of each scheduler. Some modules need other packages.
_READERS = {
    "beat": "celery_delayq.periodic.importers.beat",
    "redbeat": "celery_delayq.periodic.importers.redbeat",
    "django-celery-beat": "celery_delayq.periodic.importers.django",
    "list": "celery_delayq.periodic.exported",
}

_STYLES: dict[Result, str] = {
    "added": "green",
    "replaced": "green",
    "kept": "",
    "skipped": "dim",
    "refused": "red",
}


@command("import")
@argument("place", "[PLACE]", "A path, - or a URL, as above.", required=False)
@option(
    "--from",
    "source",
    required=True,
    type=click.Choice([*_READERS]),
    help="The scheduler to import from.",
)
@flag("--replace", help="Replace entries of the same name.")
@dry_run_option
@json_option
def import_(delayq: DelayQ, place: str | None, source: str, replace: bool, dry_run: bool) -> bool:
    """Import the entries of another scheduler, or a backup.

    Other schedulers are celery beat, RedBeat and django-celery-beat. Stop the beat first, and
    import before the first worker starts. PLACE is the file of beat (by default that of the
    setting beat_schedule_filename), RedBeat's Redis (by default as RedBeat's settings say, or the
    broker), the URL of Django's database, or with --from list a file with the output of `periodic
    list --json` (- is standard input). Intervals keep their phase, and ticks since the last run
    are caught up. Entries in code are imported as the code has them. A backup restores the entries
    that were made by calls, and those of other apps, as they were. The source is not changed, and
    the command may be repeated: entries that exist are left as they are. Exits with 1 when one
    could not be imported.

    \b
    Examples:
      celery -A shop delayq periodic import --from beat celerybeat-schedule
      celery -A shop delayq periodic import --from redbeat --dry-run
      celery -A shop delayq periodic import --from django-celery-beat \\
          postgresql://shop@db/shop
      celery -A shop delayq periodic list --json > periodic.jsonl
      celery -A shop delayq periodic import --from list periodic.jsonl
    """
    if source == "django-celery-beat" and place is None:
        raise click.UsageError("give the URL of Django's database")
    if source == "list" and place is None:
        raise click.UsageError("give the file, or - for standard input")
    output = screen.console()
    counts: Counter[Result] = Counter()
    found = take_over(
        delayq.session, _entries(delayq.app, source, place), dry_run=dry_run, replace=replace
    )
    for entry, result in found:
        counts[result] += 1
        when = None if entry.definition is None else describe(entry.definition.schedule)
        if screen.is_json():
            values = {"name": entry.name, "result": result, "when": when, "why": entry.problem}
            screen.print_json({**values, "note": entry.note, "enabled": entry.enabled})
            continue
        text = Text(result, _STYLES[result]).append(f"  {quoted(entry.name)}", "default")
        if entry.definition is not None:
            text.append(f"  {spelled(screen.schedule_text(entry.definition.schedule))}", "dim")
        if not entry.enabled and result in ("added", "replaced"):
            text.append("  paused", "yellow")
        if entry.problem is not None:
            text.append(f"  {spelled(entry.problem)}", "default")
        elif entry.note is not None:
            text.append(f"  {spelled(entry.note)}", "yellow")
        output.print(text, soft_wrap=True)
    if not screen.is_json():
        output.print(_summary(counts, dry_run=dry_run), soft_wrap=True)
    return not counts["refused"]


def _summary(counts: Counter[Result], *, dry_run: bool) -> str:
    text = number_of(counts.total(), "entry", "entries")
    parts = ", ".join(f"{number:,} {result}" for result, number in counts.items())
    end = " A dry run, nothing was changed." if dry_run else ""
    return f"{text}{': ' if parts else ''}{parts}.{end}"


def _entries(app: Celery, source: str, place: str | None) -> Iterator[FoundEntry]:
    with sqlalchemy_needed() if source == "django-celery-beat" else nullcontext():
        module = import_module(_READERS[source])
    found: Iterator[FoundEntry] = module.entries(app, place)
    return found
