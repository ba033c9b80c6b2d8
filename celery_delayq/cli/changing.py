"""The commands that change: ``cancel``, ``reschedule``, ``run-now``, ``pause``, ``resume``."""

from __future__ import annotations

import click
from celery.bin.base import CeleryCommand

from celery_delayq.cli.base import delayq_of, reporting_errors
from celery_delayq.cli.options import (
    Meant,
    Moment,
    Name,
    Span,
    ids_argument,
    json_option,
    option,
    with_meant,
    with_queue_or_task,
)


@click.command(cls=CeleryCommand)
@ids_argument
@with_meant
@click.pass_context
@reporting_errors
def cancel(ctx: click.Context, meant: Meant) -> None:
    """Cancel tasks that no worker has yet; they never run then.

    Give ids, or a filter: then it is shown how many entries are meant, and asked. Exits with 1
    when something was not cancelled, as when a worker has it; `celery control revoke` is for that.

    \b
    Examples:
      celery -A shop delayq cancel 0d1b0f6e-9f5c-4f0e-a8f5-1f6d8cf1f1a5
      celery -A shop delayq cancel mail-7 --if-eta 2030-01-31T09:00:00Z
      celery -A shop delayq cancel --task shop.remind --dry-run
      celery -A shop delayq cancel --queue mail --due-to 1h --yes --json
    """
    from celery_delayq.cli import control

    meant.check()
    delayq = delayq_of(ctx)
    control.change(ctx, delayq, control.cancel(delayq), meant)


@click.command("cancel-canvas", cls=CeleryCommand)
@option(
    "--root",
    type=Name(),
    metavar="ID",
    help="All that began with this task: a chain, chord or tree.",
)
@option("--group", type=Name(), metavar="ID", help="All of this group.")
@json_option
@click.pass_context
@reporting_errors
def cancel_canvas(ctx: click.Context, root: str | None, group: str | None, as_json: bool) -> None:
    """Cancel all tasks of a chain, a chord or a group.

    What is scheduled of it is cancelled now, for which the whole schedule is looked at. What is
    ready, or is sent by its tasks that run, is refused by the workers.

    \b
    Examples:
      celery -A shop delayq cancel-canvas --root order-7
      celery -A shop delayq cancel-canvas --group 5c1f… --json
    """
    from celery_delayq.cli import control

    if (root is None) == (group is None):
        raise click.UsageError("give either --root or --group")
    control.cancel_canvas(ctx, delayq_of(ctx), root=root, group=group, as_json=as_json)


@click.command(cls=CeleryCommand)
@ids_argument
@option(
    "--eta", type=Moment(), metavar="TIME", help="To this time: ISO 8601, local without offset."
)
@option("--in", "countdown", type=Span(), metavar="SPAN", help="To this long from now: 90, 1h30m.")
@option(
    "--by",
    type=Span(negative=True, beside="a time another than none; run-now runs at once"),
    metavar="SPAN",
    help="By this much: 90 (seconds), 1h30m, 2d; -10m for earlier.",
)
@with_meant
@click.pass_context
@reporting_errors
def reschedule(
    ctx: click.Context, meant: Meant, eta: str | None, countdown: float | None, by: float | None
) -> None:
    """Move scheduled tasks to another time.

    Give ids, or a filter: then it is shown how many entries are meant, and asked. Exits with 1
    when something was not moved: it has left the schedule, or would have been due in the past.

    \b
    Examples:
      celery -A shop delayq reschedule mail-7 --eta 2030-01-31T09:00:00+01:00
      celery -A shop delayq reschedule mail-7 --in 1h30m
      celery -A shop delayq reschedule --task shop.remind --due-to 1h --by 15m
      celery -A shop delayq reschedule --queue mail --by -10m --yes
    """
    from celery_delayq.cli import control

    if sum(each is not None for each in (eta, countdown, by)) != 1:
        raise click.UsageError("give one of --eta, --in and --by")
    meant.check()
    delayq = delayq_of(ctx)
    control.change(ctx, delayq, control.reschedule(delayq, eta, countdown, by), meant)


@click.command("run-now", cls=CeleryCommand)
@ids_argument
@with_meant
@click.pass_context
@reporting_errors
def run_now(ctx: click.Context, meant: Meant) -> None:
    """Run scheduled tasks at once.

    They are made ready, to run next in their priority; what is paused runs when it goes on. Give
    ids, or a filter: then it is shown how many entries are meant, and asked. Exits with 1 when
    something had left the schedule.

    \b
    Examples:
      celery -A shop delayq run-now 0d1b0f6e-9f5c-4f0e-a8f5-1f6d8cf1f1a5
      celery -A shop delayq run-now --task shop.remind --due-to 10m
    """
    from celery_delayq.cli import control

    meant.check()
    delayq = delayq_of(ctx)
    control.change(ctx, delayq, control.run_now(delayq), meant)


@click.command(cls=CeleryCommand)
@with_queue_or_task
@json_option
@click.pass_context
@reporting_errors
def pause(ctx: click.Context, queue: str | None, task: str | None, as_json: bool) -> None:
    """Start nothing of a queue or a task until it is resumed.

    What a worker has taken already still runs; what is sent meanwhile is kept. To pause what is
    paused changes nothing and exits with 0.

    \b
    Examples:
      celery -A shop delayq pause --queue mail
      celery -A shop delayq pause --task shop.remind
    """
    from celery_delayq.cli import control

    control.pause(ctx, delayq_of(ctx), queue=queue, task=task, as_json=as_json)


@click.command(cls=CeleryCommand)
@with_queue_or_task
@json_option
@click.pass_context
@reporting_errors
def resume(ctx: click.Context, queue: str | None, task: str | None, as_json: bool) -> None:
    """Let a queue or a task go on that is paused.

    \b
    Examples:
      celery -A shop delayq resume --queue mail
      celery -A shop delayq resume --task shop.remind
    """
    from celery_delayq.cli import control

    control.pause(ctx, delayq_of(ctx), queue=queue, task=task, resume=True, as_json=as_json)
