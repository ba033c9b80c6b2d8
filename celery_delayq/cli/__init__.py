"""``celery -A app delayq …``: for people, with ``--json`` for scripts."""

from __future__ import annotations

import click
from celery.bin.base import CeleryCommand, CeleryOption

from celery_delayq.cli import changing, dead, looking, periodic, transfer
from celery_delayq.cli.base import Refused, delayq_of, reporting_errors
from celery_delayq.cli.options import Name

__all__ = ["Refused", "delayq", "delayq_of", "reporting_errors"]


@click.group()
def delayq() -> None:
    """Look after tasks that wait in Redis (celery_delayq).

    Each command exits with 0 when all was done, with 1 after an error or when something was not
    done (it runs already, it is unknown, somebody said no), and with 2 when it cannot be meant
    like that. With --json there is JSON on standard output, and errors are on standard error.
    Times are shown in local time with their offset; one without an offset is read as local time.

    \b
    Examples:
      celery -A shop delayq stats
      celery -A shop delayq list --due-to 1h
      celery -A shop delayq cancel --help
    """


for command in (
    looking.get,
    looking.list_,
    looking.count,
    looking.paused,
    changing.cancel,
    changing.cancel_canvas,
    changing.reschedule,
    changing.run_now,
    changing.pause,
    changing.resume,
    transfer.export,
    transfer.import_,
    dead.dead,
    periodic.periodic,
):
    delayq.add_command(command)


@delayq.command(cls=CeleryCommand)
@click.pass_context
@reporting_errors
def dispatch(ctx: click.Context) -> None:
    """Move due tasks to their queues until TERM or INT.

    Workers do this too; a process of its own helps where they are few, or set
    {"delayq": {"dispatch": False}}. Any number of them may run. As workers do, it waits for Redis
    at its start.

    \b
    Example:
      celery -A shop delayq dispatch
    """
    from celery_delayq.cli.dispatch import run

    run(delayq_of(ctx))


@delayq.command(cls=CeleryCommand)
@click.option("--json", "as_json", is_flag=True, cls=CeleryOption, help="Print JSON.")
@click.pass_context
@reporting_errors
def stats(ctx: click.Context, as_json: bool) -> None:
    """Show what is scheduled and ready, by queue and task.

    \b
    Examples:
      celery -A shop delayq stats
      celery -A shop delayq stats --json | jq .overdue
    """
    from celery_delayq.cli.stats import show

    show(delayq_of(ctx), as_json=as_json)


@delayq.command(cls=CeleryCommand)
@click.option("--repair", is_flag=True, cls=CeleryOption, help="Repair what is found.")
@click.option("--queue", type=Name(), metavar="QUEUE", cls=CeleryOption, help="Look at this only.")
@click.option("--json", "as_json", is_flag=True, cls=CeleryOption, help="Print JSON.")
@click.pass_context
@reporting_errors
def fsck(ctx: click.Context, repair: bool, queue: str | None, as_json: bool) -> None:
    """Find what does not fit together in Redis, and repair it.

    Entries without a due time, messages that would never come back, queues that nobody looks at,
    and the like. Workers and producers may go on; a repair may be interrupted and repeated.
    Exits with 1 when something is left wrong.

    \b
    Examples:
      celery -A shop delayq fsck
      celery -A shop delayq fsck --repair
      celery -A shop delayq fsck --queue mail --json | jq .findings
    """
    from celery_delayq.cli.fsck import run

    run(delayq_of(ctx), queue=queue, repair=repair, as_json=as_json)


@delayq.command(cls=CeleryCommand)
@click.option(
    "--from",
    "source",
    type=click.Choice(["stock"]),
    cls=CeleryOption,
    help="Take over what stopped stock workers hold in Redis.",
)
@click.option(
    "--to",
    "target",
    type=click.Choice(["stock"]),
    cls=CeleryOption,
    help="Give all back: the schedule as stock messages, and what workers held.",
)
@click.option("--dry-run", is_flag=True, cls=CeleryOption, help="Count, change nothing.")
@click.option("--yes", is_flag=True, cls=CeleryOption, help="Go on although workers answer.")
@click.pass_context
@reporting_errors
def migrate(
    ctx: click.Context, source: str | None, target: str | None, dry_run: bool, yes: bool
) -> None:
    """Move an app over from stock Celery, or back.

    It needs no drain: stop the workers first; producers may go on. May be interrupted and
    repeated.

    \b
    Examples:
      celery -A shop delayq migrate --from stock --dry-run
      celery -A shop delayq migrate --from stock
      celery -A shop delayq migrate --to stock
    """
    from celery_delayq.cli.migrate import run

    if (source is None) == (target is None):
        raise click.UsageError("give either --from stock or --to stock")
    run(delayq_of(ctx), give_back=target is not None, dry_run=dry_run, yes=yes)
