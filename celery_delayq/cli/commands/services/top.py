"""``top``: what waits and runs, drawn again and again."""

from __future__ import annotations

import sys
from contextlib import closing, suppress
from functools import partial

import click

from celery_delayq.app import DelayQ
from celery_delayq.cli import screen
from celery_delayq.cli.command import command, stopping_event
from celery_delayq.cli.lines import Paper
from celery_delayq.cli.options import flag, option
from celery_delayq.cli.top.drawing import Status, draw
from celery_delayq.cli.top.frame import Request, read, read_or_error
from celery_delayq.cli.top.state import State
from celery_delayq.store.error_text import BROKER_ERRORS, broker_address, is_away
from celery_delayq.web.site import Site


@command(timeouts=False)
@option(
    "--interval",
    type=click.FloatRange(0.2, 3600),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Seconds between two looks.",
)
@flag("--once", help="Print one frame and exit, as without a terminal.")
def top(delayq: DelayQ, interval: float, once: bool) -> None:
    """Watch queues, workers, pauses and limits.

    Shown are tasks by state, rates a minute, lateness, the load to come, pauses, limits,
    dispatchers and processes with leases. The last line has the keys: Enter opens the tasks of a
    queue, and then a task with the reason why it waits; / filters; space stops and goes on; q
    quits. A filter of tasks is a part of an argument, or has words such as task=shop.mail,
    queue=mail, id=mail-7 or due_to=1h.

    Without a terminal it prints one frame as plain text.

    \b
    Examples:
      celery -A shop delayq top
      celery -A shop delayq top --interval 10
      celery -A shop delayq top --once
    """
    console = screen.console()
    paper = Paper(console.width, console.options.ascii_only)
    broker = broker_address(delayq.app)
    with closing(Site(delayq.app)) as site:
        if once or not console.is_terminal or console.is_dumb_terminal or not sys.stdin.isatty():
            state = State()
            frame = read(site, Request.of(state))
            for line in draw(state, frame, Status(broker), paper).lines:
                console.print(line, soft_wrap=True)
            return
        # Report permanent errors at once, such as another broker or a wrong password.
        try:
            if not site.delayq.session.on_rabbitmq:
                site.now()
        except BROKER_ERRORS as exc:
            if not is_away(exc):
                raise
        from celery_delayq.cli.top.loop import Top
        from celery_delayq.cli.top.terminal import Terminal

        stopping = stopping_event()
        with suppress(KeyboardInterrupt), Terminal(console) as terminal:
            show = partial(Top, ascii_only=paper.ascii_only)
            show(terminal, partial(read_or_error, site), interval, broker, stopping).run()
