"""``python -m celery_delayq.embedded``: a private server in the foreground."""

from __future__ import annotations

import argparse
import signal
import sys

from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.errors import EmbeddedRedisError, RedisServerNotFound


def main(arguments: list[str] | None = None) -> int:
    """Run a server in the foreground until SIGINT or SIGTERM; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m celery_delayq.embedded",
        description="Run a private Redis server on 127.0.0.1 and print its URL.",
    )
    parser.add_argument("--executable", help="server program (default: searched on this machine)")
    parser.add_argument("--data-dir", help="folder for data (default: a temporary one)")
    parser.add_argument("--port", type=int, help="TCP port (default: a free one)")
    chosen = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # raises KeyboardInterrupt
    try:
        with EmbeddedRedis(**vars(chosen)) as server:
            print(server.url, flush=True)
            print(f"for delayed tasks: {server.url_for('delayq+redis')}", flush=True)
            code = server.wait()
            print(f"the server ended with code {code}", file=sys.stderr)
            return 1
    except KeyboardInterrupt:
        return 0
    except (EmbeddedRedisError, RedisServerNotFound) as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
