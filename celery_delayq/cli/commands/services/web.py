"""``web``: the pages of delayed tasks, without Flower."""

from __future__ import annotations

import asyncio
import logging
import signal
from pathlib import Path

import click

from celery_delayq.admin.exit_codes import Refused
from celery_delayq.app import DelayQ
from celery_delayq.cli import screen
from celery_delayq.cli.command import command
from celery_delayq.cli.options import flag, name_option, option, with_address
from celery_delayq.errors import ConfigError


@command(timeouts=False)
@with_address(5556)
@option(
    "--auth-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with a line user:password for each user. Required unless --host is this machine.",
)
@name_option("--url-prefix", metavar="PATH", help="The path before those of the pages.")
@flag("--read-only", help="Allow no changes.")
def web(
    delayq: DelayQ,
    host: str,
    port: int,
    auth_file: Path | None,
    url_prefix: str | None,
    read_only: bool,
) -> None:
    """Serve the pages of delayed tasks until TERM or INT.

    They are those of the tab in Flower. DelayQ(app, web_changes=...) says who may change tasks.
    Needs celery-delayq[web].

    \b
    Examples:
      celery -A shop delayq web
      celery -A shop delayq web --host 0.0.0.0 --auth-file /run/secrets/delayq
    """
    try:
        from celery_delayq.web.server import PageServer, ServerOptions, read_passwords
    except ImportError as exc:
        raise ConfigError(f'the pages need {exc.name}: pip install "celery-delayq[web]"') from exc
    if not delayq.session.on_rabbitmq:
        delayq.session.check_broker()
    passwords = {} if auth_file is None else read_passwords(auth_file)
    options = ServerOptions(host, port, url_prefix or "", passwords, read_only)

    async def serve() -> None:
        try:
            server = PageServer(delayq.app, options)
        except OSError as exc:
            raise Refused(
                f"cannot listen on {host}, port {port}: {exc.strerror or exc}; choose another "
                "--port or --host, or stop the program that uses it"
            ) from exc
        stopping = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)
        _log_changes()
        screen.console().print(f"pages on {server.url}", soft_wrap=True)
        await server.serve(stopping)

    asyncio.run(serve())


def _log_changes() -> None:
    """Write who changes what to standard error, unless the app has its own handlers of logs."""
    logger = logging.getLogger("celery_delayq.web")
    logger.setLevel(logging.INFO)
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logger.addHandler(handler)
