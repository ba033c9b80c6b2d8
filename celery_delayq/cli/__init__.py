"""``celery -A app delayq …``: for people, with ``--json`` for scripts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click
from celery.bin.base import CeleryCommand, CeleryOption
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from celery_delayq.app import DelayQ
from celery_delayq.errors import DelayQError

F = TypeVar("F", bound=Callable[..., Any])


class Refused(click.ClickException):
    """An error that is told in one line, without a traceback."""


def reporting_errors(command: F) -> F:
    """Tell what went wrong in one line and exit with 1."""

    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except (DelayQError, OperationalError, RedisError) as exc:
            raise Refused(str(exc)) from exc

    return wrapper  # type: ignore[return-value]


@click.group()
def delayq() -> None:
    """Look after tasks that wait in Redis (celery_delayq)."""


def _delayq_of(ctx: click.Context) -> DelayQ:
    return DelayQ.of(ctx.obj.app)


@delayq.command(cls=CeleryCommand)
@click.pass_context
@reporting_errors
def dispatch(ctx: click.Context) -> None:
    """Move due tasks to their queues until TERM or INT.

    Workers do this too; a process of its own helps where they are few, or set
    {"delayq": {"dispatch": False}}. Any number of them may run.

    \b
    Example:
      celery -A shop delayq dispatch
    """
    from celery_delayq.cli.dispatch import run

    run(_delayq_of(ctx))


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

    show(_delayq_of(ctx), as_json=as_json)


@delayq.command(cls=CeleryCommand)
@click.option("--repair", is_flag=True, cls=CeleryOption, help="Repair what is found.")
@click.option("--queue", metavar="QUEUE", cls=CeleryOption, help="Look at this queue only.")
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

    run(_delayq_of(ctx), queue=queue, repair=repair, as_json=as_json)


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
    """Move a running app over from stock Celery, or back, without a drain.

    Stop the workers first; producers may go on. May be interrupted and repeated.

    \b
    Examples:
      celery -A shop delayq migrate --from stock --dry-run
      celery -A shop delayq migrate --from stock
      celery -A shop delayq migrate --to stock
    """
    from celery_delayq.cli.migrate import run

    if (source is None) == (target is None):
        raise click.UsageError("give either --from stock or --to stock")
    run(ctx.obj.app, give_back=target is not None, dry_run=dry_run, yes=yes)
