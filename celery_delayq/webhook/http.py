"""One HTTP request to checked addresses, within a deadline. Needs httpcore.

httpcore accepts a network backend: ours connects to the checked addresses, and applies one deadline
to all reads and writes.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import certifi
import httpcore

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

#: Most bytes of one write: the deadline is checked between two writes.
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
        Seconds to connect to one address, and the same time again for TLS.
    deadline : float
        End of the whole request, by ``time.monotonic``.
    max_response : int
        Most bytes to read from the body of a failure. The body of a success is not read.

    Raises
    ------
    httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError, OSError
        There was no answer: :data:`NO_ANSWER_ERRORS`.
    ConfigError
        *ca_file* cannot be read.
    """
    secure = target.scheme == "https"
    accept = [] if any(name.lower() == "accept" for name in headers) else [("Accept", "*/*")]
    # Each request has its own pool: hosts with the same address share no connection, and neither
    # do processes, threads and greenlets.
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
        status = response.status
        given = {name.lower(): value for name, value in response.headers}
        logger.info("POST %s: %s", target.shown, status)
        text = "" if 200 <= status < 300 else _read_beginning(response, max_response)
        return Answer(status, _text(given.get(b"retry-after")), _text(given.get(b"location")), text)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")


def _read_beginning(response: httpcore.Response, max_bytes: int) -> str:
    data = b""
    try:
        for part in response.iter_stream():
            data = (data + part)[:max_bytes]
            if len(data) == max_bytes:
                break
    except NO_ANSWER_ERRORS:
        pass  # the status is known and more important
    # The text of a foreign server goes into logs: make it one printable line.
    text = " ".join(data.decode(errors="replace").split())
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


@lru_cache(maxsize=8)
def _tls(ca_file: str | None) -> ssl.SSLContext:
    """Return the context that checks certificates. It is cached: reading authorities is slow."""
    if ca_file is None:
        ca_file = certifi.where()
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as exc:
        raise ConfigError(f"Webhook(ca_file={ca_file!r}): the file cannot be read: {exc}") from exc


class _Backend(httpcore.SyncBackend):
    """Connects to given addresses instead of the host's name. TLS still checks the name."""

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
                    _remaining_seconds(self._deadline, timeout, httpcore.ConnectTimeout),
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
        seconds = _remaining_seconds(self._deadline, timeout, httpcore.ReadTimeout)
        return self._inner.read(max_bytes, seconds)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), _CHUNK_BYTES):
            seconds = _remaining_seconds(self._deadline, timeout, httpcore.WriteTimeout)
            self._inner.write(buffer[start : start + _CHUNK_BYTES], seconds)

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        seconds = _remaining_seconds(self._deadline, timeout, httpcore.ConnectTimeout)
        stream = self._inner.start_tls(ssl_context, server_hostname, seconds)
        return _Stream(stream, self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


def _remaining_seconds(deadline: float, timeout: float | None, error: type[Exception]) -> float:
    """Return the most seconds to wait; raise *error* after the deadline."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise error("the time is over")
    return seconds if timeout is None else min(seconds, timeout)
