"""One HTTP request to addresses that were checked, within a deadline. Needs httpx.

httpx looks up names itself and has a timeout for each read, not for all of them. Both are decided
below it, where it opens and reads connections.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import httpcore
import httpx

from celery_delayq.errors import ConfigError
from celery_delayq.webhook.addresses import WebhookUrl
from celery_delayq.webhook.request import Answer

#: What ends a request without an answer.
FAILURES = (
    httpcore.TimeoutException,
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpx.HTTPError,
    OSError,
)

#: Bytes written at once: the time is looked at between two of them.
_CHUNK = 16_384


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
        Where to connect to: the first that answers.
    connect_timeout : float
        Seconds for each of them, and again for TLS.
    deadline : float
        Until when all has to be done, by ``time.monotonic``.
    max_response : int
        How many bytes to read of the body of a failure; that of a success is not read.

    Raises
    ------
    httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError, httpx.HTTPError, \
    OSError
        There was no answer: :data:`FAILURES`.
    ConfigError
        The file with the authorities cannot be read.
    """
    transport = _Transport(_Backend(addresses, deadline), ca_file, target.request.encode())
    with (
        # A new one for each request: connections to one address are not to be shared by hosts,
        # and nothing has to be kept apart between processes, threads and greenlets.
        httpx.Client(
            transport=transport,
            trust_env=False,
            follow_redirects=False,
            timeout=httpx.Timeout(max(0.001, deadline - time.monotonic()), connect=connect_timeout),
        ) as client,
        # httpx logs the URL: the query is added by the transport.
        client.stream("POST", target.shown, content=body, headers=dict(headers)) as response,
    ):
        status = response.status_code
        text = "" if 200 <= status < 300 else _beginning(response, max_response)
        return Answer(status, response.headers.get("retry-after"), transport.location, text)


def _beginning(response: httpx.Response, most: int) -> str:
    data = b""
    try:
        # Not in pieces of one length: what has come before the deadline would be lost.
        for part in response.iter_raw():
            data = (data + part)[:most]
            if len(data) == most:
                break
    except FAILURES:
        pass  # the status is known, and says more
    # It comes from anywhere and goes into logs: one line, nothing that moves a cursor.
    text = " ".join(data.decode(errors="replace").split())
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


class _Transport(httpx.BaseTransport):
    """Sends requests over connections that a backend of ours has made.

    *location* is the header of that name of the last answer. httpx does not see it: it would read
    it also where it does not follow.
    """

    def __init__(self, backend: _Backend, ca_file: str | None, request: bytes) -> None:
        self.location: str | None = None
        self._request = request
        self._backend = backend
        self._ca_file = ca_file
        self._pool: httpcore.ConnectionPool | None = None

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        secure = url.scheme == "https"
        self._pool = httpcore.ConnectionPool(
            ssl_context=_tls(self._ca_file) if secure else None,
            network_backend=self._backend,
            max_connections=1,
            max_keepalive_connections=0,
        )
        answer = self._pool.handle_request(
            httpcore.Request(
                method=request.method,
                url=httpcore.URL(
                    scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=self._request
                ),
                headers=request.headers.raw,
                content=request.stream,
                extensions=request.extensions,
            )
        )
        headers = httpx.Headers(answer.headers)
        self.location = headers.pop("location", None)
        return httpx.Response(answer.status, headers=headers, stream=_Body(answer))

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()


class _Body(httpx.SyncByteStream):
    def __init__(self, answer: httpcore.Response) -> None:
        self._answer = answer

    def __iter__(self) -> Iterator[bytes]:
        return self._answer.iter_stream()

    def close(self) -> None:
        self._answer.close()


@lru_cache(maxsize=8)
def _tls(ca_file: str | None) -> ssl.SSLContext:
    """Return how certificates are checked; reading the authorities' takes long."""
    if ca_file is None:
        return httpx.create_ssl_context(trust_env=False)
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as exc:
        raise ConfigError(f"Webhook(ca_file={ca_file!r}): it cannot be read: {exc}") from exc


class _Backend(httpcore.NetworkBackend):
    """Connects to given addresses, whatever the name of the host; TLS still checks the name."""

    def __init__(self, addresses: Sequence[str], deadline: float) -> None:
        self._addresses = addresses
        self._deadline = deadline
        self._inner = httpcore.SyncBackend()

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
                stream = self._inner.connect_tcp(
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
    """A connection on which no single step and not all of them together last beyond a deadline."""

    def __init__(self, inner: httpcore.NetworkStream, deadline: float) -> None:
        self._inner = inner
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inner.read(max_bytes, _left(self._deadline, timeout, httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), _CHUNK):
            left = _left(self._deadline, timeout, httpcore.WriteTimeout)
            self._inner.write(buffer[start : start + _CHUNK], left)

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
    """Return for how many seconds to wait at most."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise error("the time is over")
    return left if timeout is None else min(left, timeout)
