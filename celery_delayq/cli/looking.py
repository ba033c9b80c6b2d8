"""The commands that look: ``get``, ``list``, ``count``, ``paused``."""

from __future__ import annotations

import click
from celery.bin.base import CeleryCommand

from celery_delayq.cli.base import delayq_of, reporting_errors
from celery_delayq.cli.options import (
    Name,
    id_argument,
    json_option,
    option,
    queue_option,
    with_filter,
)
from celery_delayq.model.scheduled import Filter


@click.command(cls=CeleryCommand)
@id_argument
@queue_option
@json_option
@click.pass_context
@reporting_errors
def get(ctx: click.Context, id: str, queue: str | None, as_json: bool) -> None:
    """Show where a task waits, or who has it.

    A time may be given to --if-eta as it is shown. A task that was routed to two queues is shown
    twice. Exits with 1 when it has finished or never was.

    \b
    Examples:
      celery -A shop delayq get 0d1b0f6e-9f5c-4f0e-a8f5-1f6d8cf1f1a5
      celery -A shop delayq get mail-7 --json | jq -r '.entries[0].due'
    """
    from celery_delayq.cli.entries import show_one

    show_one(ctx, delayq_of(ctx), id, queue, as_json)


@click.command("list", cls=CeleryCommand)
@with_filter
@option(
    "--limit",
    type=click.IntRange(1, 10_000),
    metavar="NUMBER",
    help="Most entries to show; 100 if it is not given.",
)
@option("--cursor", type=Name(), metavar="CURSOR", help="Go on where the page ended that told it.")
@option("--all", "all_", is_flag=True, help="Show all, page by page.")
@json_option
@click.pass_context
@reporting_errors
def list_(
    ctx: click.Context,
    filter: Filter,
    limit: int | None,
    cursor: str | None,
    all_: bool,
    as_json: bool,
) -> None:
    """Show what is scheduled, in order of due.

    Times are local, with their offset, and are read so. What is paused comes last. Ids are shown
    as a shell takes them: quoted, where they hold anything special.

    \b
    Examples:
      celery -A shop delayq list
      celery -A shop delayq list --task shop.remind --due-to 1h
      celery -A shop delayq list --due-from 2030-01-31 --due-to 2030-02-01
      celery -A shop delayq list --queue mail --all --json | jq -r '.entries[].id'
    """
    from celery_delayq.cli import entries

    if all_ and (cursor is not None or limit is not None):
        raise click.UsageError("--all shows everything: leave out --limit and --cursor")
    if all_:
        entries.show_all(ctx, delayq_of(ctx), filter, as_json=as_json)
    else:
        limit = limit or entries.LIMIT
        entries.show_page(ctx, delayq_of(ctx), filter, limit=limit, cursor=cursor, as_json=as_json)


@click.command(cls=CeleryCommand)
@with_filter
@json_option
@click.pass_context
@reporting_errors
def count(ctx: click.Context, filter: Filter, as_json: bool) -> None:
    """Tell how many entries are scheduled.

    \b
    Examples:
      celery -A shop delayq count
      celery -A shop delayq count --task shop.remind --due-to 1h
      celery -A shop delayq count --queue mail --json | jq .count
    """
    from celery_delayq.cli.entries import show_count

    show_count(ctx, delayq_of(ctx), filter, as_json=as_json)


@click.command(cls=CeleryCommand)
@json_option
@click.pass_context
@reporting_errors
def paused(ctx: click.Context, as_json: bool) -> None:
    """Show which queues and tasks are paused, and since when.

    \b
    Examples:
      celery -A shop delayq paused
      celery -A shop delayq paused --json | jq -r '.queues | keys[]'
    """
    from celery_delayq.cli.control import show_paused

    show_paused(ctx, delayq_of(ctx), as_json=as_json)
