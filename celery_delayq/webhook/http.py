"""One HTTP request to addresses that were checked, within a deadline. Needs httpx.

The request is made with httpcore, on which httpx is built: there a backend of our own decides where
to connect, and applies one deadline to all reads and writes.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import httpcore
import httpx

from celery_delayq.errors import ConfigError
from celery_delayq.webhook.addresses import WebhookUrl
from celery_delayq.webhook.request import Answer

logger = logging.getLogger(__name__)

#: Errors of a request that got no answer.
NO_ANSWER_ERRORS = (
    httpcore.TimeoutException,
    httpcore.NetworkError,
    httpcore.ProtocolError,
    OSError,
)

#: Bytes written at once: the deadline is checked between two writes.
_CHUNK_BYTES = 16_384


def send(
    target: WebhookUrl,
    addresses: Sequence[str],
    headers: Mapping[str, str],
    body: bytes,
    *,
    connect_timeout: float,
    deadline: float,
    max_response: int,
    ca_file: str | None,
) -> Answer:
    """POST *body*, and read the answer.

    Parameters
    ----------
    addresses : Sequence[str]
        The addresses of the host, tried in this order.
    connect_timeout : float
        Seconds to connect to one address, and again for TLS.
    deadline : float
        End of the whole request, by ``time.monotonic``.
    max_response : int
        Most bytes to read of the body of a failure; the body of a success is not read.

    Raises
    ------
    httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError, OSError
        There was no answer: :data:`NO_ANSWER_ERRORS`.
    ConfigError
        *ca_file* cannot be read.
    """
    secure = target.scheme == "https"
    accept = [] if any(name.lower() == "accept" for name in headers) else [("Accept", "*/*")]
    # A new pool for each request: hosts do not share connections to one address, and nothing is
    # shared by processes, threads and greenlets.
    with (
        httpcore.ConnectionPool(
            ssl_context=_tls(ca_file) if secure else None,
            network_backend=_Backend(addresses, deadline),
            max_connections=1,
            max_keepalive_connections=0,
        ) as pool,
        pool.stream(
            "POST",
            httpcore.URL(
                scheme=target.scheme, host=target.host, port=target.port, target=target.request
            ),
            headers=[("Host", target.authority), *accept, *headers.items()],
            content=body,
            extensions={"timeout": {"connect": connect_timeout}},
        ) as response,
    ):
        status, given = response.status, httpx.Headers(response.headers)
        logger.info("POST %s: %s", target.shown, status)
        text = "" if 200 <= status < 300 else _beginning(response, max_response)
        return Answer(status, given.get("retry-after"), given.get("location"), text)


def _beginning(response: httpcore.Response, most: int) -> str:
    data = b""
    try:
        for part in response.iter_stream():
            data = (data + part)[:most]
            if len(data) == most:
                break
    except NO_ANSWER_ERRORS:
        pass  # the status is known, and says more
    # Any server may have sent it, and it goes into logs: make it one printable line.
    text = " ".join(data.decode(errors="replace").split())
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


@lru_cache(maxsize=8)
def _tls(ca_file: str | None) -> ssl.SSLContext:
    """Return the context that checks certificates; cached, since reading authorities is slow."""
    if ca_file is None:
        return httpx.create_ssl_context(trust_env=False)
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as exc:
        raise ConfigError(f"Webhook(ca_file={ca_file!r}): it cannot be read: {exc}") from exc


class _Backend(httpcore.SyncBackend):
    """Connects to given addresses instead of the host's name; TLS still checks the name."""

    def __init__(self, addresses: Sequence[str], deadline: float) -> None:
        self._addresses = addresses
        self._deadline = deadline

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        error: Exception = httpcore.ConnectError(f"{host} has no address")
        for address in self._addresses:
            try:
                stream = super().connect_tcp(
                    address,
                    port,
                    _left(self._deadline, timeout, httpcore.ConnectTimeout),
                    local_address,
                    socket_options or (),
                )
                return _Stream(stream, self._deadline)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as exc:
                error = exc
        raise error


class _Stream(httpcore.NetworkStream):
    """A connection whose reads and writes all end by one deadline."""

    def __init__(self, inner: httpcore.NetworkStream, deadline: float) -> None:
        self._inner = inner
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inner.read(max_bytes, _left(self._deadline, timeout, httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), _CHUNK_BYTES):
            left = _left(self._deadline, timeout, httpcore.WriteTimeout)
            self._inner.write(buffer[start : start + _CHUNK_BYTES], left)

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        left = _left(self._deadline, timeout, httpcore.ConnectTimeout)
        return _Stream(self._inner.start_tls(ssl_context, server_hostname, left), self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


def _left(deadline: float, timeout: float | None, error: type[Exception]) -> float:
    """Return the seconds to wait at most, or raise *error* after the deadline."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise error("the time is over")
    return left if timeout is None else min(left, timeout)
