"""Free TCP ports for private servers."""

from __future__ import annotations

import random
import socket
from typing import Final

from celery_delayq.errors import EmbeddedRedisError

HOST: Final = "127.0.0.1"
#: Ports to try, below the ephemeral range. A client that reconnects to an ephemeral port of a
#: stopped server may get the same port for its own end, and then the server cannot use the port.
PORTS = range(20_000, 32_768)
_ATTEMPTS: Final = 200

#: The ports to try next. A port is used again only after all others: kombu keeps the connections
#: of a URL as long as the process runs, and would use those of an ended server for a new one.
_untried_ports: list[int] = []


def free_port() -> int:
    """Return a port of 127.0.0.1 that was free a moment ago (EmbeddedRedisError if none is)."""
    for _ in range(_ATTEMPTS):
        if not _untried_ports:
            _untried_ports.extend(random.sample(PORTS, k=len(PORTS)))
        port = _untried_ports.pop()
        if is_free(port):
            return port
    raise EmbeddedRedisError(f"no free port on {HOST} from {PORTS[0]} to {PORTS[-1]}")


def is_free(port: int) -> bool:
    """Return whether a server can use a port of 127.0.0.1 now."""
    with socket.socket() as probe:
        # Servers use this option: a port whose last connections just closed counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
