"""What a task message says, as far as it can be read here. No I/O."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from kombu.compression import decompress
from kombu.serialization import loads, prepare_accept_content

from celery_delayq.message import own_of

#: What is decoded to show arguments: no pickle, whatever the app accepts.
READABLE = prepare_accept_content(("json", "yaml", "msgpack"))


def body_of(message: Mapping[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """Return arguments, keyword arguments and what Celery keeps beside them.

    Raises
    ------
    Exception
        Whatever a body that is none gives.
    """
    body = message["body"]
    if message["properties"].get("body_encoding") == "base64":
        body = base64.b64decode(body)
    compression = message["headers"].get("compression")
    if compression:
        body = decompress(body, compression)
    args, kwargs, embedded, *_ = loads(
        body, message["content-type"], message["content-encoding"], accept=READABLE
    )
    return args, kwargs, dict(embedded or {})


class Readable:
    """What there is to read in the message of a task."""

    __slots__ = ()

    message: dict[str, Any] | None

    @property
    def headers(self) -> dict[str, Any]:
        """The headers of its message, empty where it is not known."""
        headers = (self.message or {}).get("headers")
        return headers if isinstance(headers, dict) else {}

    @property
    def own(self) -> Mapping[str, Any]:
        """Our own data in its message, empty where there is none."""
        return own_of((self.message or {}).get("properties"))

    @property
    def args(self) -> Sequence[Any] | None:
        """Positional arguments; None where they cannot be read."""
        args: Sequence[Any] | None = self._body()[0]
        return args

    @property
    def kwargs(self) -> dict[str, Any] | None:
        """Keyword arguments; None where they cannot be read."""
        kwargs: dict[str, Any] | None = self._body()[1]
        return kwargs

    def _body(self) -> tuple[Any, Any]:
        try:
            args, kwargs, _ = body_of(self.message or {})
            return args, kwargs
        except Exception:
            return None, None
