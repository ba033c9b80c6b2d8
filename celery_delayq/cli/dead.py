"""The commands for dead letters: ``dead list``, ``show``, ``replay``, ``purge`` and so on."""

from __future__ import annotations

import click
from celery.bin.base import CeleryCommand

from celery_delayq.cli.base import delayq_of, reporting_errors
from celery_delayq.cli.dead_options import (
    DeadMeant,
    How,
    with_dead_filter,
    with_dead_meant,
    with_how,
)
from celery_delayq.cli.options import (
    Span,
    argument,
    json_option,
    option,
    queue_option,
    target_argument,
)
from celery_delayq.model.dead_letter import DeadFilter

_DEAD_LETTER_ID = "Id of a dead letter; put -- before one that begins with a dash."
_PLACE = "By default the database of the setting dead_letters_archive."

dead_letters_argument = argument("ids", "[ID]...", _DEAD_LETTER_ID, nargs=-1)


@click.group()
def dead() -> None:
    """Look after dead letters: what will not run any more.

    A task that failed for good, that killed its workers or that nobody could read is a dead letter
    until it is replayed, purged or archived.

    \b
    Examples:
      celery -A shop delayq dead list
      celery -A shop delayq dead replay --task shop.remind --died-from 1h
      celery -A shop delayq dead purge --help
    """


@dead.command("list", cls=CeleryCommand)
@with_dead_filter
@option(
    "--limit",
    type=click.IntRange(1),
    metavar="NUMBER",
    help="Most dead letters to show; 100 if it is not given.",
)
@option("--all", "all_", is_flag=True, help="Show all.")
@option("--json", "as_json", is_flag=True, help="Print JSON, a line for each; times in UTC.")
@click.pass_context
@reporting_errors
def list_(
    ctx: click.Context, filter: DeadFilter, limit: int | None, all_: bool, as_json: bool
) -> None:
    """Show dead letters, the first that died first.

    Times are local, with their offset, and are read so. Ids are shown as a shell takes them:
    quoted, where they hold anything special.

    \b
    Examples:
      celery -A shop delayq dead list
      celery -A shop delayq dead list --task shop.remind --died-from 1h
      celery -A shop delayq dead list --exception ValueError --reason timeout
      celery -A shop delayq dead list --all --json | jq -r .task_id
    """
    from celery_delayq.cli import dead_letter_tables

    if all_ and limit is not None:
        raise click.UsageError("--all shows everything: leave out --limit")
    limit = None if all_ else limit or dead_letter_tables.LIMIT
    dead_letter_tables.show_many(ctx, delayq_of(ctx), filter, limit=limit, as_json=as_json)


@dead.command(cls=CeleryCommand)
@argument("id", "ID", _DEAD_LETTER_ID)
@queue_option
@json_option
@click.pass_context
@reporting_errors
def show(ctx: click.Context, id: str, queue: str | None, as_json: bool) -> None:
    """Show all that is known of a dead letter.

    Why it died, the traceback, the arguments (as JSON, as replay takes them). ID is that of the
    dead letter, as `dead list` shows it, or that of a task of which there are dead letters. Exits
    with 1 when there is none.

    \b
    Examples:
      celery -A shop delayq dead show 0d1b0f6e-9f5c-4f0e-a8f5-1f6d8cf1f1a5
      celery -A shop delayq dead show mail-7 --json | jq '.dead letters[0].due'
    """
    from celery_delayq.cli import dead_letter_tables

    dead_letter_tables.show_one(ctx, delayq_of(ctx), id, queue, as_json=as_json)


@dead.command(cls=CeleryCommand)
@dead_letters_argument
@with_how
@with_dead_meant
@click.pass_context
@reporting_errors
def replay(ctx: click.Context, meant: DeadMeant, how: How) -> None:
    """Run dead letters again, with all their attempts.

    Give ids, or a filter: then it is shown how many are meant, and asked. In one step a dead letter
    is scheduled or ready, and dead no more. Exits with 1 when something was not replayed: others
    have replayed it, or another task has its unique key.

    \b
    Examples:
      celery -A shop delayq dead replay 0d1b0f6e-9f5c-4f0e-a8f5-1f6d8cf1f1a5
      celery -A shop delayq dead replay mail-7 --args '["ann@example.org"]'
      celery -A shop delayq dead replay --task shop.remind --dry-run
      celery -A shop delayq dead replay --exception TimeoutError --rate 10 --yes
      celery -A shop delayq dead replay --all --to-queue slow
    """
    from celery_delayq.cli import control, replaying

    how.check(ids=bool(meant.ids))
    meant.check()
    delayq = delayq_of(ctx)
    control.change(ctx, delayq, replaying.replay(ctx, delayq, how), meant)


@dead.command(cls=CeleryCommand)
@dead_letters_argument
@with_dead_meant
@click.pass_context
@reporting_errors
def purge(ctx: click.Context, meant: DeadMeant) -> None:
    """Forget dead letters; chords that wait for them fail.

    Give ids, or a filter: then it is shown how many are meant, and asked. Exits with 1 when
    something was there no more.

    \b
    Examples:
      celery -A shop delayq dead purge 0d1b0f6e-9f5c-4f0e-a8f5-1f6d8cf1f1a5
      celery -A shop delayq dead purge --task shop.remind --died-to 30d
      celery -A shop delayq dead purge --all --yes --json
    """
    from celery_delayq.cli import control, replaying

    meant.check()
    delayq = delayq_of(ctx)
    control.change(ctx, delayq, replaying.purge(delayq), meant)


@dead.command(cls=CeleryCommand)
@target_argument
@with_dead_filter
@json_option
@click.pass_context
@reporting_errors
def export(ctx: click.Context, target: str, filter: DeadFilter, as_json: bool) -> None:
    """Write dead letters to a file or a SQL database.

    They stay in Redis; `archive` moves them. TARGET is a path (JSON Lines, gzipped if it ends in
    .gz), - for standard output, or the URL of a database: sqlite:///path or
    postgresql://user:password@host/name. A file appears when it is complete.

    \b
    Examples:
      celery -A shop delayq dead export dead.jsonl
      celery -A shop delayq dead export - --task shop.remind | jq .reason
      celery -A shop delayq dead export sqlite:///dead.db
    """
    from celery_delayq.cli import transferring

    transferring.export_dead(ctx, delayq_of(ctx), target, filter, as_json=as_json)


@dead.command("import", cls=CeleryCommand)
@argument("source", "[SOURCE]", _PLACE, required=False)
@with_dead_filter
@option("--dry-run", is_flag=True, help="Only tell what would become of the dead letters.")
@json_option
@click.pass_context
@reporting_errors
def import_(
    ctx: click.Context, source: str | None, filter: DeadFilter, dry_run: bool, as_json: bool
) -> None:
    """Put back dead letters that were archived or exported.

    SOURCE is as for export; - is standard input. May be repeated: what is there already is left
    as it is. A database keeps them too. Exits with 1 when a line was refused.

    \b
    Examples:
      celery -A shop delayq dead import --task shop.remind --died-from 30d
      celery -A shop delayq dead import dead.jsonl --dry-run
      celery -A shop delayq dead import postgresql://backup@db/shop
    """
    from celery_delayq.cli import transferring

    transferring.import_dead(ctx, delayq_of(ctx), source, filter, dry_run=dry_run, as_json=as_json)


@dead.command(cls=CeleryCommand)
@argument("url", "[URL]", _PLACE, required=False)
@with_dead_filter
@option(
    "--older-than",
    type=Span(),
    metavar="SPAN",
    help="Only those that died so long ago: 90 (seconds), 1h30m, 2d.",
)
@json_option
@click.pass_context
@reporting_errors
def archive(
    ctx: click.Context,
    url: str | None,
    filter: DeadFilter,
    older_than: float | None,
    as_json: bool,
) -> None:
    """Move dead letters to a SQL database.

    URL is sqlite:///path or postgresql://user:password@host/name. A dead letter leaves Redis when
    the database has it, and is there once: it may be interrupted and repeated. Workers do it by
    themselves where the setting dead_letters_archive says to which database.

    \b
    Examples:
      celery -A shop delayq dead archive sqlite:////var/lib/shop/dead.db
      celery -A shop delayq dead archive --older-than 1d --task shop.remind
      celery -A shop delayq dead archive postgresql://backup@db/shop --json
    """
    from celery_delayq.cli import transferring

    transferring.archive_dead(
        ctx, delayq_of(ctx), url, filter, older_than=older_than or 0.0, as_json=as_json
    )
