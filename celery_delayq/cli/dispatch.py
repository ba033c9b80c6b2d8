"""The dispatcher as a process of its own."""

from __future__ import annotations

import signal
import threading
import time

import click
from celery import Celery
from rich.console import Console
from rich.live import Live

from celery_delayq.app import DelayQ
from celery_delayq.cli.words import spelled
from celery_delayq.conf import Settings
from celery_delayq.dispatcher import DispatcherThread, Tally
from celery_delayq.store import Store
from celery_delayq.ticker import Ticker

#: Seconds between two progress lines on a terminal, and elsewhere.
REFRESH = (0.5, 30.0)


def run(delayq: DelayQ) -> None:
    """Dispatch until TERM or INT, showing progress in one line."""
    if delayq.app is None:
        raise AssertionError("the command line always has an app")
    settings = Settings.from_options(delayq.app.conf.broker_transport_options)
    console = Console(highlight=False)
    console.print("connecting")
    store = delayq.store
    store.now_ms()  # a wrong password or no server is told now, not retried for ever

    def reopen() -> Store:
        delayq.close()
        return delayq.store

    thread = DispatcherThread(store, settings, reopen)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    started = time.monotonic()
    thread.start()
    ticker = Ticker(delayq.app, deploy=_knows_all(delayq.app))
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
    if tally.buried:
        parts.append(f"{tally.buried:,} unreadable, now dead letters")
    if tally.errors:
        parts.append(f"{tally.errors:,} errors, see the log")
    look = tally.last
    if look is None or look.due is None:
        parts.append("nothing scheduled")
    else:
        parts.append(
            f"next of {look.queue} due at {time.strftime('%X', time.localtime(look.due / 1000))}"
        )
    return " · ".join(parts)
