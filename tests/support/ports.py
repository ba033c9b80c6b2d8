"""Ports for what the tests start themselves."""

from __future__ import annotations

import random
import socket


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nobody listens on.

    It lies below the ephemeral range, from which the clients of other tests get theirs.
    """
    for port in random.sample(range(20_000, 32_768), k=200):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("no free port")
