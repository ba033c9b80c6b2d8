"""The commands for periodic entries: ``periodic list``, ``add``, ``pause`` and so on."""

from __future__ import annotations

import click
from celery.bin.base import CeleryCommand

from celery_delayq.cli.base import delayq_of, reporting_errors
from celery_delayq.cli.options import Name, argument, json_option, option
from celery_delayq.cli.periodic_options import (
    Asked,
    any_names_argument,
    name_argument,
    names_argument,
    unset_option,
    with_entry,
)


@click.group()
def periodic() -> None:
    """Look after periodic entries, fired without beat.

    Entries in code (beat_schedule, add_periodic_task) are written by workers when they start; what
    is made here stays until it is removed.

    \b
    Examples:
      celery -A shop delayq periodic list
      celery -A shop delayq periodic add poll shop.poll --every 30
      celery -A shop delayq periodic pause --help
    """


@periodic.command("list", cls=CeleryCommand)
@option("--source", type=Name(), metavar="SOURCE", help="As it is shown: api, or 'code shop'.")
@option(
    "--status",
    type=click.Choice(["on", "paused", "ended", "unreadable"]),
    help="Only those that are so.",
)
@option("--json", "as_json", is_flag=True, help="Print JSON, a line for each; times in UTC.")
@click.pass_context
@reporting_errors
def list_(ctx: click.Context, source: str | None, status: str | None, as_json: bool) -> None:
    """Show all entries, by name.

    "next" is the next tick that is not scheduled yet; `delayq list` shows those that are. What is
    unreadable, since the class of its schedule is not here or another version wrote it, is shown
    with the reason; pause and remove take it too.

    \b
    Examples:
      celery -A shop delayq periodic list
      celery -A shop delayq periodic list --status ended
      celery -A shop delayq periodic list --source api --json | jq -r .name
    """
    from celery_delayq.cli import ticking

    ticking.show_all(ctx, delayq_of(ctx), source, status, as_json=as_json)


@periodic.command(cls=CeleryCommand)
@name_argument
@json_option
@click.pass_context
@reporting_errors
def show(ctx: click.Context, name: str, as_json: bool) -> None:
    """Show all that is known of an entry. Exits with 1 when there is none.

    \b
    Examples:
      celery -A shop delayq periodic show report
      celery -A shop delayq periodic show report --json | jq .total_run_count
    """
    from celery_delayq.cli import ticking

    ticking.show_one(ctx, delayq_of(ctx), name, as_json=as_json)


@periodic.command("next", cls=CeleryCommand)
@name_argument
@option(
    "--count",
    type=click.IntRange(1, 10_000),
    default=5,
    show_default=True,
    metavar="NUMBER",
    help="So many.",
)
@json_option
@click.pass_context
@reporting_errors
def next_(ctx: click.Context, name: str, count: int, as_json: bool) -> None:
    """Show the next ticks of an entry that are not scheduled yet.

    \b
    Examples:
      celery -A shop delayq periodic next report
      celery -A shop delayq periodic next report --count 9 --json | jq .ticks
    """
    from celery_delayq.cli import ticking

    ticking.show_next(ctx, delayq_of(ctx), name, count, as_json=as_json)


@periodic.command(cls=CeleryCommand)
@name_argument
@argument("task", "TASK", "Name of a task.")
@with_entry
@option("--replace", is_flag=True, help="Take the place of an entry of that name.")
@json_option
@click.pass_context
@reporting_errors
def add(
    ctx: click.Context, name: str, task: str, asked: Asked, replace: bool, as_json: bool
) -> None:
    """Add an entry.

    Give when it is to run: one of --every, --crontab, --rrule, --at and --solar. Exits with 1 when
    there is an entry of that name already.

    \b
    Examples:
      celery -A shop delayq periodic add poll shop.poll --every 30
      celery -A shop delayq periodic add report shop.report \\
          --crontab '0 9 * * mon-fri' --timezone Europe/Berlin --overlap skip
      celery -A shop delayq periodic add launch shop.launch --at 2030-01-01
      celery -A shop delayq periodic add payday shop.pay \\
          --rrule 'FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=9;BYMINUTE=0;BYSECOND=0'
    """
    from celery_delayq.cli import ticking

    if asked.schedule is None:
        raise click.UsageError("give one of --every, --crontab, --rrule, --at and --solar")
    ticking.add(ctx, delayq_of(ctx), name, task, asked, replace=replace, as_json=as_json)


@periodic.command(cls=CeleryCommand)
@name_argument
@option("--task", type=Name(), metavar="TASK", help="Another task.")
@with_entry
@unset_option
@json_option
@click.pass_context
@reporting_errors
def update(
    ctx: click.Context,
    name: str,
    task: str | None,
    asked: Asked,
    unset: tuple[str, ...],
    as_json: bool,
) -> None:
    """Change what is given of an entry; all else stays.

    An interval keeps its phase. What is changed in an entry in code holds until its code changes.

    \b
    Examples:
      celery -A shop delayq periodic update report --crontab '30 9 * * *'
      celery -A shop delayq periodic update poll --every 1m --queue slow
      celery -A shop delayq periodic update poll --unset end --unset max-runs
    """
    from celery_delayq.cli import ticking

    if task is None and not unset and asked == Asked(None, {}, {}):
        raise click.UsageError("give what is to be changed")
    ticking.update(ctx, delayq_of(ctx), name, task, asked.without(unset), as_json=as_json)


@periodic.command(cls=CeleryCommand)
@any_names_argument
@option("--ended", is_flag=True, help="All that have ended and are not in code.")
@option("--yes", is_flag=True, help="Do not ask, with --ended.")
@json_option
@click.pass_context
@reporting_errors
def remove(
    ctx: click.Context, names: tuple[str, ...], ended: bool, yes: bool, as_json: bool
) -> None:
    """Remove entries.

    Their ticks that are not due yet are removed too; what runs goes on. An entry in code comes
    back when its code changes. What is named is not asked about; with --ended it is, and a script
    has to say --yes. Exits with 1 when one was not there.

    \b
    Examples:
      celery -A shop delayq periodic remove launch
      celery -A shop delayq periodic remove poll report
      celery -A shop delayq periodic remove --ended --yes
    """
    from celery_delayq.cli import ticking

    if bool(names) == ended:
        raise click.UsageError("give either names or --ended")
    ticking.remove(ctx, delayq_of(ctx), names, ended=ended, yes=yes, as_json=as_json)


@periodic.command(cls=CeleryCommand)
@names_argument
@json_option
@click.pass_context
@reporting_errors
def pause(ctx: click.Context, names: tuple[str, ...], as_json: bool) -> None:
    """Fire no ticks of entries until they go on.

    Also through deploys and restarts. Ticks that are not due yet are withdrawn.

    \b
    Example:
      celery -A shop delayq periodic pause report
    """
    from celery_delayq.cli import ticking

    ticking.pause(ctx, delayq_of(ctx), names, as_json=as_json)


@periodic.command(cls=CeleryCommand)
@names_argument
@json_option
@click.pass_context
@reporting_errors
def resume(ctx: click.Context, names: tuple[str, ...], as_json: bool) -> None:
    """Let paused entries go on with the next tick.

    Those that passed meanwhile are not caught up.

    \b
    Example:
      celery -A shop delayq periodic resume report
    """
    from celery_delayq.cli import ticking

    ticking.resume(ctx, delayq_of(ctx), names, as_json=as_json)


@periodic.command("run-now", cls=CeleryCommand)
@names_argument
@json_option
@click.pass_context
@reporting_errors
def run_now(ctx: click.Context, names: tuple[str, ...], as_json: bool) -> None:
    """Run the task of entries once more, now.

    Their ticks stay as they are.
    Exits with 1 when one was not run: it is unknown, or runs and may not overlap.

    \b
    Example:
      celery -A shop delayq periodic run-now report
    """
    from celery_delayq.cli import ticking

    ticking.run_now(ctx, delayq_of(ctx), names, as_json=as_json)


@periodic.command("import", cls=CeleryCommand)
@argument("place", "[PLACE]", "A path, - or a URL, as above.", required=False)
@option(
    "--from",
    "source",
    required=True,
    type=click.Choice(["beat", "redbeat", "django-celery-beat", "list"]),
    help="Whose entries.",
)
@option("--replace", is_flag=True, help="Take the place of entries of the same name.")
@option("--dry-run", is_flag=True, help="Only tell what would become of them.")
@json_option
@click.pass_context
@reporting_errors
def import_(
    ctx: click.Context,
    place: str | None,
    source: str,
    replace: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Take over what other schedulers have, or a backup.

    That is celery beat, RedBeat or django-celery-beat. Stop the beat first, and do it before
    the first worker starts. PLACE is the file of beat (by default that of the setting
    beat_schedule_filename), RedBeat's Redis (by default as it is set for RedBeat, or the
    broker), the URL of Django's database, or with --from list a file of what `periodic list
    --json` told (- is standard input). Intervals keep their phase, and what was due since the
    last run is caught up. Entries in code are as the code has them; of a list those made by
    calls, and those of other apps, are as they were. Nothing is changed there, and it may be
    repeated: what is here already is left as it is. Exits with 1 when one could not be taken
    over.

    \b
    Examples:
      celery -A shop delayq periodic import --from beat celerybeat-schedule
      celery -A shop delayq periodic import --from redbeat --dry-run
      celery -A shop delayq periodic import --from django-celery-beat \\
          postgresql://shop@db/shop
      celery -A shop delayq periodic list --json > periodic.jsonl
      celery -A shop delayq periodic import --from list periodic.jsonl
    """
    from celery_delayq.cli import takeover

    if source == "django-celery-beat" and place is None:
        raise click.UsageError("give the URL of Django's database")
    if source == "list" and place is None:
        raise click.UsageError("give the file, or - for standard input")
    takeover.run(
        ctx, delayq_of(ctx), source, place, replace=replace, dry_run=dry_run, as_json=as_json
    )
