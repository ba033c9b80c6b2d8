"""Free TCP ports for private servers."""

from __future__ import annotations

import random
import socket
from typing import Final

from celery_delayq.errors import EmbeddedRedisError

HOST: Final = "127.0.0.1"
#: Where to look. Below the ephemeral range: a client that keeps reconnecting to an ephemeral port
#: of a stopped server can be given that very port as its own end, and then holds it against it.
PORTS = range(20_000, 32_768)
_ATTEMPTS: Final = 200

#: The ports to try next. None comes again before all others: kombu keeps the connections of a URL
#: for the life of the process, and those to a server that has ended would serve the next one.
_next: list[int] = []


def free_port() -> int:
    """Return a port of 127.0.0.1 that was free a moment ago (EmbeddedRedisError if none is)."""
    for _ in range(_ATTEMPTS):
        if not _next:
            _next.extend(random.sample(PORTS, k=len(PORTS)))
        port = _next.pop()
        with socket.socket() as probe:
            # As a server does it: a port whose last connections just closed is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise EmbeddedRedisError(f"no free port on {HOST} from {PORTS[0]} to {PORTS[-1]}")
