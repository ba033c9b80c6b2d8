"""``dispatch``: the dispatcher as a process of its own."""

from __future__ import annotations

import signal
import threading
import time
from itertools import count

import click
from celery import Celery
from rich.live import Live

from celery_delayq.app import DelayQ
from celery_delayq.cli import screen
from celery_delayq.cli.command import command
from celery_delayq.cli.text import stamp
from celery_delayq.dispatch.dispatcher import Dispatcher, Tally
from celery_delayq.model.scheduled import moment
from celery_delayq.periodic.runner import Ticker
from celery_delayq.settings import Settings
from celery_delayq.store.error_text import BROKER_ERRORS, describe_error, is_away
from celery_delayq.store.schedule import Store
from celery_delayq.utils.text import spelled

#: Seconds between two lines of progress: on a terminal, and elsewhere.
REFRESH = (0.5, 30.0)

#: Seconds to wait for Redis at the start, growing with each attempt, as in Celery's workers.
WAIT, LONGEST_WAIT = 2.0, 30.0


@command()
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
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    output.print("connecting")
    store = _connected(delayq, app, stopping)
    if store is None:
        output.print("stopped before there was a connection")
        return

    def reopen() -> Store:
        delayq.close()
        return delayq.store

    dispatcher = Dispatcher(store, settings, reopen)
    started = time.monotonic()
    dispatcher.start()
    ticker = Ticker(app, deploy=_knows_all(app))
    ticker.start()

    def progress() -> str:
        return _line(dispatcher.tally, time.monotonic() - started)

    if output.is_terminal:
        with Live(console=output, auto_refresh=False) as live:
            while not stopping.wait(REFRESH[0]):
                live.update(progress(), refresh=True)
    else:
        output.print("dispatching")
        while not stopping.wait(REFRESH[1]):
            output.print(progress())
    dispatcher.stop()
    ticker.stop()
    dispatcher.join()
    output.print(f"stopped: {progress()}")


def _connected(delayq: DelayQ, app: Celery, stopping: threading.Event) -> Store | None:
    """Wait until Redis answers, as workers do at their start; None if it is stopped before.

    A wrong password is reported at once.
    """
    retry = app.conf.broker_connection_retry_on_startup
    most = app.conf.broker_connection_max_retries
    if retry is None:
        retry = app.conf.broker_connection_retry
    for attempt in count(1):
        try:
            store = delayq.store
            store.now_ms()
            return store
        except BROKER_ERRORS as exc:
            if not (retry and is_away(exc)) or (most and attempt > most):
                raise
            delay = min(LONGEST_WAIT, WAIT * attempt)
            text = f"{describe_error(exc, app)}. Trying again in {delay:g} s "
            text += f"({attempt}/{most or 'for ever'})"
            click.echo(spelled(text), err=True)
        if stopping.wait(delay):
            break
    return None


def _knows_all(app: Celery) -> bool:
    """Import all modules of the app, as a worker does; return whether that worked.

    Entries of a module that is not imported must not count as removed from the code.
    """
    try:
        app.loader.import_default_modules()
        app.finalize()
    except Exception as exc:  # a module may raise anything
        click.echo(f"Periodic entries in code are left to workers: {spelled(str(exc))}", err=True)
        return False
    return True


def _line(tally: Tally, seconds: float) -> str:
    """Return what was done in *seconds*, in one line."""
    parts = [f"{tally.promoted:,} promoted", f"{tally.promoted / max(seconds, 1):,.1f}/s"]
    if tally.dead_lettered:
        parts.append(f"{tally.dead_lettered:,} unreadable, now dead letters")
    if tally.errors:
        parts.append(f"{tally.errors:,} errors, see the log")
    look = tally.last
    if look is None or look.due is None or look.queue is None:
        parts.append("nothing scheduled")
    else:
        parts.append(f"next due in {spelled(look.queue)} at {stamp(moment(look.due))}")
    return " · ".join(parts)
