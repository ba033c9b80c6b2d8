"""The commands that write the schedule elsewhere and read it back: ``export``, ``import``."""

from __future__ import annotations

from typing import Literal

import click
from celery.bin.base import CeleryCommand

from celery_delayq.cli.base import delayq_of, reporting_errors
from celery_delayq.cli.options import (
    json_option,
    option,
    source_argument,
    target_argument,
    with_filter,
)
from celery_delayq.model.scheduled import Filter


@click.command(cls=CeleryCommand)
@target_argument
@with_filter
@option("--prune", is_flag=True, help="Remove from the database what is not scheduled any more.")
@json_option
@click.pass_context
@reporting_errors
def export(ctx: click.Context, target: str, filter: Filter, prune: bool, as_json: bool) -> None:
    """Write what is scheduled to a file or a SQL database.

    Nothing in Redis is changed. TARGET is a path (JSON Lines, gzipped if it ends in .gz), - for
    standard output, or the URL of a database: sqlite:///path or
    postgresql://user:password@host/name. A file appears when it is complete. Exits with 1 when an
    entry could not be read; all others are written.

    \b
    Examples:
      celery -A shop delayq export schedule.jsonl
      celery -A shop delayq export - --queue mail | gzip > mail.jsonl.gz
      celery -A shop delayq export postgresql://backup@db/shop --prune
    """
    from celery_delayq.cli.transferring import export as run

    run(ctx, delayq_of(ctx), target, filter, prune=prune, as_json=as_json)


@click.command("import", cls=CeleryCommand)
@source_argument
@with_filter
@option(
    "--overdue",
    type=click.Choice(["run", "skip"]),
    default="run",
    help="What to do with entries that should have run by now; they are run if it is not given.",
)
@option("--dry-run", is_flag=True, help="Only tell what would become of the entries.")
@json_option
@click.pass_context
@reporting_errors
def import_(
    ctx: click.Context,
    source: str,
    filter: Filter,
    overdue: Literal["run", "skip"],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Schedule what was exported.

    SOURCE is as for export; - is standard input. May be repeated: what is there already is left
    as it is. What has run since the export would run again; --due-from leaves it out. Exits with
    1 when a line was refused or a queue is full; all else is scheduled.

    \b
    Examples:
      celery -A shop delayq import schedule.jsonl --dry-run
      celery -A shop delayq import schedule.jsonl --due-from 2030-01-31T09:00:00Z
      celery -A shop delayq import postgresql://backup@db/shop --overdue skip
      celery -A old delayq export - | celery -A new delayq import -
    """
    from celery_delayq.cli.transferring import import_ as run

    run(ctx, delayq_of(ctx), source, filter, overdue=overdue, dry_run=dry_run, as_json=as_json)
