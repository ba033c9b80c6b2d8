"""The dispatcher as a process of its own."""

from __future__ import annotations

import signal
import threading
import time
from itertools import count

import click
from celery import Celery
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError
from rich.console import Console
from rich.live import Live

from celery_delayq.app import DelayQ
from celery_delayq.cli.base import is_away, told
from celery_delayq.cli.words import spelled, stamp
from celery_delayq.dispatch.dispatcher import DispatcherThread, Tally
from celery_delayq.model.scheduled import moment
from celery_delayq.periodic.runner import Ticker
from celery_delayq.settings import Settings
from celery_delayq.store.schedule import Store

#: Seconds between two progress lines on a terminal, and elsewhere.
REFRESH = (0.5, 30.0)

#: Seconds to wait for Redis at the start, more each time, as Celery's workers do.
WAIT, LONGEST_WAIT = 2.0, 30.0


def run(delayq: DelayQ) -> None:
    """Dispatch until TERM or INT, showing progress in one line."""
    app = delayq.app
    settings = Settings.from_options(app.conf.broker_transport_options)
    console = Console(highlight=False)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    console.print("connecting")
    store = _connected(delayq, app, stopping)
    if store is None:
        console.print("stopped before there was a connection")
        return

    def reopen() -> Store:
        delayq.close()
        return delayq.store

    thread = DispatcherThread(store, settings, reopen)
    started = time.monotonic()
    thread.start()
    ticker = Ticker(app, deploy=_knows_all(app))
    ticker.start()
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            while not stopping.wait(REFRESH[0]):
                live.update(
                    _line(thread.dispatcher.tally, time.monotonic() - started), refresh=True
                )
    else:
        console.print("dispatching")
        while not stopping.wait(REFRESH[1]):
            console.print(_line(thread.dispatcher.tally, time.monotonic() - started))
    thread.stop()
    ticker.stop()
    thread.join()
    console.print(f"stopped: {_line(thread.dispatcher.tally, time.monotonic() - started)}")


def _connected(delayq: DelayQ, app: Celery, stopping: threading.Event) -> Store | None:
    """Wait until Redis answers, as workers do at their start; None when it is to stop before.

    A wrong password is told at once.
    """
    retry, most = (
        app.conf.broker_connection_retry_on_startup,
        app.conf.broker_connection_max_retries,
    )
    if retry is None:
        retry = app.conf.broker_connection_retry
    for attempt in count(1):
        try:
            store = delayq.store
            store.now_ms()
            return store
        except (RedisError, OperationalError) as exc:
            if not (retry and is_away(exc)) or (most and attempt > most):
                raise
            delay = min(LONGEST_WAIT, WAIT * attempt)
            text = f"{told(exc, app)}. Trying again in {delay:g} s ({attempt}/{most or 'for ever'})"
            click.echo(spelled(text), err=True)
        if stopping.wait(delay):
            break
    return None


def _knows_all(app: Celery) -> bool:
    """Import what the app consists of, as a worker does: what is in modules that were not is not
    gone from the code.
    """
    try:
        app.loader.import_default_modules()
        app.finalize()
    except Exception as exc:  # modules are anybody's
        click.echo(f"Periodic entries in code are left to workers: {spelled(str(exc))}", err=True)
        return False
    return True


def _line(tally: Tally, seconds: float) -> str:
    """Return what was done so far in *seconds*, in one line."""
    parts = [f"{tally.promoted:,} promoted", f"{tally.promoted / max(seconds, 1):,.1f}/s"]
    if tally.dead_lettered:
        parts.append(f"{tally.dead_lettered:,} unreadable, now dead letters")
    if tally.errors:
        parts.append(f"{tally.errors:,} errors, see the log")
    look = tally.last
    if look is None or look.due is None or look.queue is None:
        parts.append("nothing scheduled")
    else:
        parts.append(f"next of {spelled(look.queue)} due at {stamp(moment(look.due))}")
    return " · ".join(parts)
