"""``python -m celery_delayq.embedded``: private servers in the foreground."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from celery_delayq.embedded import EmbeddedRabbitMQ, EmbeddedRedis, EmbeddedRedisCluster
from celery_delayq.errors import EmbeddedServerError, ServerNotFound

#: Seconds between two checks whether the servers run.
_CHECK_SECONDS: Final = 0.2

#: For which servers an option is.
_OPTIONS: Final = {
    "executable": ("Redis", "a cluster"),
    "data_dir": ("Redis",),
    "port": ("Redis", "a cluster", "RabbitMQ"),
    "api_port": ("RabbitMQ",),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run servers in the foreground until SIGINT or SIGTERM; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m celery_delayq.embedded",
        description="Run a private server on 127.0.0.1 and print its URL: a Redis, a Redis Cluster "
        "of three masters, or RabbitMQ.",
    )
    kinds = parser.add_mutually_exclusive_group()
    for kind, text in (("cluster", "a Redis Cluster"), ("rabbitmq", "RabbitMQ")):
        kinds.add_argument(f"--{kind}", action="store_true", help=f"run {text}")
    parser.add_argument("--executable", help="server program (default: searched on this machine)")
    parser.add_argument("--data-dir", help="folder for data (default: a temporary one)")
    parser.add_argument(
        "--port", type=int, help="TCP port, of a cluster the first of three (default: free ones)"
    )
    parser.add_argument("--api-port", type=int, help="TCP port of RabbitMQ's management API")
    chosen = parser.parse_args(arguments)
    kind = "a cluster" if chosen.cluster else "RabbitMQ" if chosen.rabbitmq else "Redis"
    options = {name: value for name in _OPTIONS if (value := getattr(chosen, name)) is not None}
    for name in options:
        if kind not in _OPTIONS[name]:
            parser.error(
                f"--{name.replace('_', '-')} is for {' and '.join(_OPTIONS[name])}, not {kind}"
            )
    try:
        with _server(kind, options) as server:
            for line in _lines(server):
                print(line, flush=True)
            while server.running:
                time.sleep(_CHECK_SECONDS)
            print("the server has ended", file=sys.stderr)
            return 1
    except KeyboardInterrupt:
        return 0
    except (EmbeddedServerError, ServerNotFound) as error:
        print(error, file=sys.stderr)
        return 1


_Server = EmbeddedRedis | EmbeddedRedisCluster | EmbeddedRabbitMQ


def _server(kind: str, options: dict[str, Any]) -> _Server:
    kinds: dict[str, Callable[..., _Server]] = {
        "Redis": EmbeddedRedis,
        "a cluster": EmbeddedRedisCluster,
        "RabbitMQ": EmbeddedRabbitMQ,
    }
    return kinds[kind](**options)


def _lines(server: _Server) -> list[str]:
    """Return what to print: the URL for other programs, and the one for delayed tasks."""
    if isinstance(server, EmbeddedRabbitMQ):
        urls = server.url(), server.url("delayq+amqp")
        return [*_both(*urls), f"management: {server.api_url()}"]
    if isinstance(server, EmbeddedRedisCluster):
        return _both(server.url_for("redis"), server.url_for())
    return _both(server.url, server.url_for("delayq+redis"))


def _both(plain: str, ours: str) -> list[str]:
    return [plain, f"for delayed tasks: {ours}"]


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # raises KeyboardInterrupt
    raise SystemExit(main())
