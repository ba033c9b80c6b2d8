"""``dispatch``: the dispatcher in a separate process."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from functools import partial
from itertools import count

import click
from celery import Celery
from rich.live import Live

from celery_delayq.app import DelayQ
from celery_delayq.cli import screen
from celery_delayq.cli.command import command, stopping_event
from celery_delayq.cli.text import stamp
from celery_delayq.dispatch import start_gate
from celery_delayq.dispatch.dispatcher import Dispatcher, Tally
from celery_delayq.dispatch.promotion_loop import PromotionLoop
from celery_delayq.model.scheduled import moment
from celery_delayq.periodic.runner import PeriodicRunner
from celery_delayq.settings import Settings
from celery_delayq.store.error_text import BROKER_ERRORS, describe_error, is_away
from celery_delayq.store.session import Session
from celery_delayq.store.store import Store
from celery_delayq.store.stores import Stores
from celery_delayq.utils.text import spelled

#: Seconds between two progress lines: on a terminal, and elsewhere.
PROGRESS_SECONDS = (0.5, 30.0)

#: Seconds to wait for Redis at the start. The wait grows with each attempt, as in workers.
RETRY_SECONDS, MAX_RETRY_SECONDS = 2.0, 30.0


@command(timeouts=False)
def dispatch(delayq: DelayQ) -> None:
    """Move due tasks to their queues until TERM or INT.

    Workers do this too. A separate process helps where there are few workers, or where the setting
    {"delayq": {"dispatch": False}} forbids it to them. Any number of dispatchers may run. It waits
    for Redis at its start, as workers do.

    \b
    Example:
      celery -A shop delayq dispatch
    """
    app = delayq.app
    settings = Settings.from_options(app.conf.broker_transport_options)
    output = screen.console()
    stopping = stopping_event()
    output.print("connecting")
    stores = _connected(delayq, app, stopping)
    if stores is None:
        output.print("stopped before there was a connection")
        return

    loop = PromotionLoop.unless_patched() if len([*stores]) > 1 else None
    dispatchers = [
        Dispatcher(store, settings, partial(_reopened, app, number), loop=loop)
        for number, store in enumerate(stores)
    ]
    deploy = _knows_all(app)
    if deploy:
        start_gate.close()
    started = time.monotonic()
    for each in dispatchers:
        each.start()
    runner = PeriodicRunner(app, deploy=deploy)
    runner.start()

    def progress() -> str:
        return _line([each.tally for each in dispatchers], time.monotonic() - started)

    if output.is_terminal:
        with Live(console=output, auto_refresh=False) as live:
            while not stopping.wait(PROGRESS_SECONDS[0]):
                live.update(progress(), refresh=True)
    else:
        output.print("dispatching")
        while not stopping.wait(PROGRESS_SECONDS[1]):
            output.print(progress())
    for each in dispatchers:
        each.stop()
    runner.stop()
    for each in dispatchers:
        each.join()
    output.print(f"stopped: {progress()}")


def _reopened(app: Celery, number: int) -> Store:
    """Return a store with new connections, which lead to a new master if there is one."""
    with Session(app) as session:
        stores: list[Store] = [*session.new_stores()]
    return stores[number]


def _connected(delayq: DelayQ, app: Celery, stopping: threading.Event) -> Stores | None:
    """Wait until Redis answers, as workers do at their start. Return None if stopped before.

    A wrong password is reported at once.
    """
    retry = app.conf.broker_connection_retry_on_startup
    most = app.conf.broker_connection_max_retries
    if retry is None:
        retry = app.conf.broker_connection_retry
    for attempt in count(1):
        try:
            delayq.session.now_ms()
            return delayq.session.stores
        except BROKER_ERRORS as exc:
            if not (retry and is_away(exc)) or (most and attempt > most):
                raise
            delay = min(MAX_RETRY_SECONDS, RETRY_SECONDS * attempt)
            text = f"{describe_error(exc, app)}. Trying again in {delay:g} s "
            text += f"({attempt}/{most or 'for ever'})"
            click.echo(spelled(text), err=True)
        if stopping.wait(delay):
            break
    return None


def _knows_all(app: Celery) -> bool:
    """Import all modules of the app, as a worker does; return whether the import succeeded.

    Entries of a module that is not imported must not count as removed from the code.
    """
    try:
        app.loader.import_default_modules()
        app.finalize()
    except Exception as exc:  # a module may raise anything
        click.echo(f"Periodic entries in code are left to workers: {spelled(str(exc))}", err=True)
        return False
    return True


def _line(tallies: Sequence[Tally], seconds: float) -> str:
    """Return a summary of the work in *seconds*, in one line."""
    promoted = sum(each.promoted for each in tallies)
    parts = [f"{promoted:,} promoted", f"{promoted / max(seconds, 1):,.1f}/s"]
    if dead_lettered := sum(each.dead_lettered for each in tallies):
        parts.append(f"{dead_lettered:,} unreadable, now dead letters")
    if errors := sum(each.errors for each in tallies):
        parts.append(f"{errors:,} errors, see the log")
    looks = (each.last_look for each in tallies if each.last_look is not None)
    nexts = [(look.due, look.queue) for look in looks if look.due is not None and look.queue]
    if nexts:
        due, queue = min(nexts)
        parts.append(f"next due in {spelled(queue)} at {stamp(moment(due))}")
    else:
        parts.append("nothing scheduled")
    return " · ".join(parts)
