"""Declare commands, and give each command the app's :class:`DelayQ`."""

from __future__ import annotations

import functools
import signal
import threading
from collections.abc import Callable
from typing import Any

import click
from celery.bin.base import CeleryCommand

from celery_delayq.admin.exit_codes import reporting_errors
from celery_delayq.app import DelayQ

#: Seconds to wait for a reply of Redis, unless the app sets another timeout.
REDIS_TIMEOUT_SECONDS = 10.0


def command(
    name: str | None = None, *, group: click.Group | None = None, timeouts: bool = True
) -> Callable[[Callable[..., bool | None]], click.Command]:
    """Declare a command. The function gets the app's DelayQ, and its options by name, but
    ``--json``: see :func:`.screen.is_json`.

    Put this decorator above the decorators of the options. Errors are reported in one line. If the
    function returns False, the command exits with 1: something was not done.

    Parameters
    ----------
    name : str | None
        The name of the command. Default: the name of the function.
    group : click.Group | None
        The group of the command, ``dead`` or ``periodic``. None for ``delayq`` itself, which finds
        its commands by the names of their modules.
    timeouts : bool
        Whether the command gives up a silent Redis. True for each command that ends by itself.
    """

    def declare(function: Callable[..., bool | None]) -> click.Command:
        @functools.wraps(function)
        def run(ctx: click.Context, /, **options: Any) -> bool | None:
            delayq = _delayq_of(ctx)
            if timeouts:
                delayq.session.redis_timeout = REDIS_TIMEOUT_SECONDS
            return function(delayq, **options)

        # reporting_errors keeps the options that click attached to the function.
        make: Any = click.command(name or function.__name__, cls=CeleryCommand)
        declared: click.Command = make(click.pass_context(reporting_errors(run)))
        if group is not None:
            group.add_command(declared)
        return declared

    return declare


def stopping_event() -> threading.Event:
    """Return an event that is set when the process gets TERM or INT."""
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    return stopping


def _delayq_of(ctx: click.Context) -> DelayQ:
    """Return the DelayQ of the app that ``-A`` names.

    Raises
    ------
    click.UsageError
        Neither an app nor a setting names the broker.
    """
    app = ctx.obj.app
    if not ctx.find_root().params.get("app"):
        conf = app.conf
        if not (conf.broker_write_url or conf.broker_transport):
            raise click.UsageError(
                "which app? Give its module before the command, such as: celery -A shop"
                f"{ctx.command_path.removeprefix(ctx.find_root().command_path)}"
            )
    return DelayQ.of(app)
