"""The HTTP server of the exporter."""

from __future__ import annotations

import socket
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST

#: The header with the seconds after which Prometheus gives up a scrape.
TIMEOUT_HEADER = "X-Prometheus-Scrape-Timeout-Seconds"

#: Default timeout of a scrape in seconds, if the header is missing.
DEFAULT_TIMEOUT_SECONDS = 10.0


class MetricsServer(ThreadingTCPServer):
    """Serves ``/metrics``.

    Parameters
    ----------
    scrape : Callable[[float], bytes]
        Returns the metrics. Its argument is the seconds to wait for the broker.

    Raises
    ------
    OSError
        The address is in use, or does not belong to this machine.
    """

    allow_reuse_address = daemon_threads = True
    request_queue_size = 128  # further clients that connect at once may wait for a second

    def __init__(self, host: str, port: int, scrape: Callable[[float], bytes]) -> None:
        self.scrape = scrape
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, _, _, _, address = found[0]
        super().__init__(address, _Handler)  # type: ignore[arg-type]

    @property
    def port(self) -> int:
        """The port; the chosen one if 0 was given."""
        return int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing for a client that closed its connection."""


class _Handler(BaseHTTPRequestHandler):
    server: MetricsServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # one packet instead of one for each header
    timeout = 300  # seconds after which the connection of an idle client is closed

    def do_GET(self) -> None:
        """Answer with the metrics, or with the path of the metrics."""
        path = self.path.partition("?")[0]
        if path == "/metrics":
            body = self.server.scrape(self._scrape_timeout() / 2)
            self._answer(HTTPStatus.OK, body, CONTENT_TYPE_LATEST)
        elif path == "/":
            self._answer(HTTPStatus.OK, b"celery_delayq: see /metrics\n")
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"not found: see /metrics\n")

    do_HEAD = do_GET  # noqa: N815

    def _scrape_timeout(self) -> float:
        try:
            return min(60.0, max(1.0, float(self.headers[TIMEOUT_HEADER])))
        except (TypeError, ValueError):
            return DEFAULT_TIMEOUT_SECONDS

    def _answer(self, status: HTTPStatus, body: bytes, kind: str = "text/plain") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing for a request."""
