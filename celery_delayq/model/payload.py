"""Headers and arguments of a task message. No I/O."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from celery.app.task import Context
from kombu.compression import decompress
from kombu.serialization import loads, prepare_accept_content

from celery_delayq.model.envelope import own_of
from celery_delayq.utils import foreign

#: Content types that are decoded to show arguments: never pickle, whatever the app accepts.
READABLE_CONTENT_TYPES = prepare_accept_content(("json", "yaml", "msgpack"))


def body_of(message: Mapping[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """Return arguments, keyword arguments and Celery's embedded options.

    Raises
    ------
    Exception
        Any error of decoding a wrong body.
    """
    args, kwargs, embedded, *_ = _decoded_body(_plain_body(message), message)
    return args, kwargs, dict(embedded or {})


def json_arguments(message: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return arguments and keyword arguments as JSON types, None and None where that is not
    possible.

    A body in JSON is given as it is, with the objects that kombu writes for times and the like.
    """
    try:
        body = _plain_body(message)
        if message["content-type"] == "application/json":
            args, kwargs, *_ = foreign.loads(body, parse_constant=_no_json)
        else:
            args, kwargs, *_ = _decoded_body(body, message)
            args = [*args]
            json.dumps([args, kwargs], allow_nan=False)
    except Exception:  # a body may be anything
        return None, None
    is_call = isinstance(args, list) and isinstance(kwargs, dict)
    return (args, kwargs) if is_call else (None, None)


def _plain_body(message: Mapping[str, Any]) -> Any:
    """Return the body of a message, neither encoded nor compressed."""
    body = message["body"]
    if message["properties"].get("body_encoding") == "base64":
        body = base64.b64decode(body)
    compression = message["headers"].get("compression")
    return decompress(body, compression) if compression else body


def _decoded_body(body: Any, message: Mapping[str, Any]) -> Any:
    return loads(
        body, message["content-type"], message["content-encoding"], accept=READABLE_CONTENT_TYPES
    )


def _no_json(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


class MessageFields:
    """The readable parts of a task message."""

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

    def arguments(self) -> dict[str, Any]:
        """Return its arguments as JSON types, and as the sender's text.

        The text may be cut or hide values; ``args`` and ``kwargs`` are None where the body is
        unreadable or no JSON.
        """
        args, kwargs = json_arguments(self.message or {})
        texts = {name: self.headers.get(name) for name in ("argsrepr", "kwargsrepr")}
        return {"args": args, "kwargs": kwargs, **texts}

    def _body(self) -> tuple[Any, Any]:
        try:
            args, kwargs, _ = body_of(self.message or {})
            return args, kwargs
        except Exception:
            return None, None


def request_of(task: MessageFields) -> Context:
    """Return the request that a worker would make of the message of a task.

    Whoever reports the end of a task without a worker needs it: result backends, signals and chords
    know the task by it. A body that cannot be read leaves out arguments and canvas, and a message
    that cannot be read leaves the id.
    """
    message = task.message
    if message is None:
        return Context(id=getattr(task, "id", None))
    try:
        args, kwargs, embedded = body_of(message)
    except Exception:  # a body may be anything
        args, kwargs, embedded = None, None, {}
    properties = message.get("properties") or {}
    return Context(
        {
            **task.headers,
            **embedded,
            "args": args,
            "kwargs": kwargs,
            "properties": properties,
            "delivery_info": properties.get("delivery_info"),
            **{name: properties.get(name) for name in ("reply_to", "correlation_id")},
        }
    )


class TaskMessage(MessageFields):
    """A task message that is in no record."""

    __slots__ = ("message",)

    def __init__(self, message: dict[str, Any]) -> None:
        self.message = message
