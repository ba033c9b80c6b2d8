"""``metrics``: the Prometheus exporter."""

from __future__ import annotations

import gc
import sys
import threading

import click

from celery_delayq.admin.exit_codes import Refused
from celery_delayq.app import DelayQ
from celery_delayq.cli import screen
from celery_delayq.cli.command import command, stopping_event
from celery_delayq.cli.options import option, with_address
from celery_delayq.errors import ConfigError
from celery_delayq.store.error_text import BROKER_ERRORS, is_away

#: Seconds for which one Python thread runs before it lets others run. A scrape waits for Redis
#: several times, and after each wait for its turn in Python.
SWITCH_SECONDS = 0.0005

#: Seconds to wait for Redis. Without a limit, the wait for a server that vanished lasts until the
#: kernel gives up.
REDIS_TIMEOUT_SECONDS = 5.0


@command(timeouts=False)
@with_address(9540)
@option(
    "--tasks",
    type=click.IntRange(0, 100_000),
    default=200,
    show_default=True,
    help="How many tasks get numbers of their own, the largest first; the others are 'other'.",
)
def metrics(delayq: DelayQ, host: str, port: int, tasks: int) -> None:
    """Serve metrics for Prometheus until TERM or INT.

    It only reads. While the broker is away it answers with delayq_up 0 and connects again by
    itself. Any number of exporters may run. Needs celery-delayq[metrics].

    \b
    Examples:
      celery -A shop delayq metrics
      celery -A shop delayq metrics --host 0.0.0.0 --port 9540
    """
    try:
        from celery_delayq.metrics.exporter import Exporter
        from celery_delayq.metrics.server import MetricsServer
    except ImportError as exc:
        raise ConfigError(f'metrics need {exc.name}: pip install "celery-delayq[metrics]"') from exc
    try:
        delayq.session.redis_timeout = REDIS_TIMEOUT_SECONDS
        # Report permanent errors at once, such as another broker or a wrong password.
        _ = delayq.session.now_ms()
    except BROKER_ERRORS as exc:
        if not is_away(exc):
            raise
    exporter = Exporter(delayq, tasks)
    try:
        server = MetricsServer(host, port, exporter.scrape)
    except OSError as exc:
        raise Refused(
            f"cannot listen on {host}, port {port}: {exc.strerror or exc}; choose another --port "
            "or --host, or stop the program that uses it"
        ) from exc
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.freeze()  # long-lived objects: no scrape waits while the collector scans them
    exporter.start()
    stopping = stopping_event()
    threading.Thread(target=server.serve_forever, name="delayq-http", daemon=True).start()
    shown = f"[{host}]" if ":" in host else host
    screen.console().print(f"metrics on http://{shown}:{server.port}/metrics", soft_wrap=True)
    stopping.wait()
    exporter.stop()
    server.shutdown()
    server.server_close()
