"""A real HTTP server that answers webhooks."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from celery_delayq.testing import wait_until

Headers = Mapping[str, str]
#: A status, a status with headers, or a function of the handler.
Answer = int | tuple[int, Headers] | Callable[["Handler"], None]


@dataclass(frozen=True)
class Received:
    """One request; *at* by ``time.monotonic``."""

    path: str
    headers: Any
    body: bytes
    at: float


class Receiver:
    """Gives its answers in turn, and the last one for all further requests.

    Parameters
    ----------
    certificate
        File in PEM with certificate and key, for TLS.
    """

    def __init__(
        self,
        *answers: Answer,
        host: str = "127.0.0.1",
        port: int = 0,
        certificate: Path | None = None,
    ) -> None:
        self.answers = list(answers)
        self.requests: list[Received] = []
        #: Whether requests are read completely.
        self.read_bodies = True
        #: Set at the end of the test, for endless answers.
        self.ended = threading.Event()
        self._lock = threading.Lock()
        self._server = _Server((host, port), Handler)
        self._server.receiver = self
        self.host, self.port = host, self._server.server_port
        self.scheme = "http"
        if certificate is not None:
            self.scheme = "https"
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    def url(self, path: str = "/", host: str | None = None) -> str:
        return f"{self.scheme}://{host or self.host}:{self.port}{path}"

    def wait(self, number: int) -> list[Received]:
        """Wait until *number* requests have come."""
        wait_until(lambda: len(self.requests) >= number, what=f"{number} requests have come")
        return self.requests

    def next_answer(self, request: Received) -> Answer:
        with self._lock:
            self.requests.append(request)
            return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def __enter__(self) -> Receiver:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    receiver: Receiver
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: in some tests clients hang up."""


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: _Server

    def do_POST(self) -> None:
        receiver = self.server.receiver
        length = int(self.headers["Content-Length"]) if receiver.read_bodies else 0
        body = self.rfile.read(length)
        answer = receiver.next_answer(Received(self.path, self.headers, body, time.monotonic()))
        if callable(answer):
            answer(self)
            return
        status, headers = (answer, {}) if isinstance(answer, int) else answer
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""
