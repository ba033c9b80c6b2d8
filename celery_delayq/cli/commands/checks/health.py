"""``health``: a readiness probe."""

from __future__ import annotations

import click

from celery_delayq.admin.exit_codes import WrongUse
from celery_delayq.admin.health import why_not_ready
from celery_delayq.app import DelayQ
from celery_delayq.cli import screen
from celery_delayq.cli.command import command
from celery_delayq.cli.options import flag, json_option, option
from celery_delayq.errors import ConfigError
from celery_delayq.utils.text import spelled


@command(timeouts=False)
@flag("--ready", help="Ask whether the broker takes tasks now.")
@option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=5.0,
    show_default=True,
    help="Seconds after which the broker counts as not ready.",
)
@json_option
def health(delayq: DelayQ, ready: bool, timeout: float) -> bool:
    """Say whether the broker takes tasks, for readiness probes.

    It exits with 0 if so and with 1 if not: the broker is away, is loading, is a replica, has no
    memory or disk space left, or blocks those who publish. Nothing is stored. Wrong settings exit
    with 2.

    Whether a worker is alive is said by the age of its liveness_file, without a broker.

    \b
    Example:
      celery -A shop delayq health --ready
    """
    if not ready:
        raise click.UsageError("give --ready; for liveness probes see the setting liveness_file")
    try:
        why = why_not_ready(delayq.app, timeout)
    except ConfigError as exc:
        raise WrongUse(spelled(str(exc))) from exc
    if screen.is_json():
        screen.print_json({"ready": not why, "reason": why})
    elif why:
        click.echo(f"not ready: {spelled(why)}", err=True)
    else:
        click.echo("ready")
    return not why
