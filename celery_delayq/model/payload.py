"""Headers and arguments of a task message. No I/O."""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

from celery.app.task import Context
from celery.utils.saferepr import saferepr
from kombu.compression import decompress
from kombu.serialization import loads, prepare_accept_content
from kombu.utils import json as kombu_json

from celery_delayq.errors import RecordError
from celery_delayq.model.envelope import Record, is_task, own_of
from celery_delayq.utils import foreign, message_json

_JSON = "application/json"

#: Content types that are decoded to show arguments. Pickle is not decoded, even if the app accepts
#: it.
READABLE_CONTENT_TYPES = prepare_accept_content(("json", "yaml", "msgpack"))

#: Characters of a value that has no form in JSON.
_MAX_SHOWN_CHARACTERS = 200


def body_of(
    message: Mapping[str, Any], accept: Collection[str] = READABLE_CONTENT_TYPES
) -> tuple[Any, Any, dict[str, Any]]:
    """Return arguments, keyword arguments and Celery's embedded options.

    Parameters
    ----------
    accept : Collection[str]
        Content types that are decoded.

    Raises
    ------
    Exception
        The body cannot be decoded; any error.
    """
    args, kwargs, embedded, *_ = _decoded_body(plain_body(message), message, accept)
    return args, kwargs, dict(embedded or {})


def body_if_readable(
    message: Mapping[str, Any], accept: Collection[str] = READABLE_CONTENT_TYPES
) -> tuple[Any, Any, dict[str, Any]] | None:
    """Return what :func:`body_of` returns, None if the body cannot be decoded."""
    try:
        return body_of(message, accept)
    except Exception:  # a body may be anything
        return None


def json_arguments(message: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return arguments and keyword arguments as JSON types; None and None if they are no JSON.

    A JSON body is returned unchanged: a time is the object that kombu writes for it.
    """
    try:
        body = plain_body(message)
        if message["content-type"] == _JSON:
            args, kwargs, *_ = foreign.loads(body, parse_constant=_no_json)
        else:
            args, kwargs, *_ = _decoded_body(body, message, READABLE_CONTENT_TYPES)
            args = [*args]
            json.dumps([args, kwargs], allow_nan=False)
    except Exception:  # a body may be anything
        return None, None
    is_call = isinstance(args, list) and isinstance(kwargs, dict)
    return (args, kwargs) if is_call else (None, None)


def json_form(value: Any) -> Any:
    """Return a value as JSON types, as kombu encodes it; a short text if kombu cannot."""
    try:
        return foreign.loads(kombu_json.dumps(value), parse_constant=_no_json)
    except Exception:  # code of the user
        return saferepr(value, _MAX_SHOWN_CHARACTERS)


def plain_body(message: Mapping[str, Any]) -> Any:
    """Return the body of a message without base64 and compression."""
    body = message["body"]
    if message["properties"].get("body_encoding") == "base64":
        body = base64.b64decode(body)
    compression = message["headers"].get("compression")
    return decompress(body, compression) if compression else body


def _decoded_body(body: Any, message: Mapping[str, Any], accept: Collection[str]) -> Any:
    content_type, encoding = message["content-type"], message["content-encoding"]
    if content_type == _JSON and encoding == "utf-8" and _JSON in accept:
        with suppress(RecordError, UnicodeEncodeError):  # then kombu decides
            return message_json.decode(body.encode() if isinstance(body, str) else body)
    return loads(body, content_type, encoding, accept=accept)


def _no_json(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


class MessageFields:
    """Reads headers, arguments and our own data of the task message *message*."""

    __slots__ = ()

    message: dict[str, Any] | None

    @property
    def headers(self) -> dict[str, Any]:
        """The headers of the message; empty if the message is not known."""
        headers = (self.message or {}).get("headers")
        return headers if isinstance(headers, dict) else {}

    @property
    def own(self) -> Mapping[str, Any]:
        """Our own data in the message; empty if the message has none."""
        return own_of((self.message or {}).get("properties"))

    @property
    def args(self) -> Sequence[Any] | None:
        """Positional arguments; None if they cannot be read."""
        return self._body()[0]

    @property
    def kwargs(self) -> dict[str, Any] | None:
        """Keyword arguments; None if they cannot be read."""
        return self._body()[1]

    def arguments(self) -> dict[str, Any]:
        """Return the arguments as JSON types, and as the text that the sender wrote.

        The text may be cut or hide values. ``args`` and ``kwargs`` are None if the body is
        unreadable or no JSON.
        """
        args, kwargs = json_arguments(self.message or {})
        texts = {name: self.headers.get(name) for name in ("argsrepr", "kwargsrepr")}
        return {"args": args, "kwargs": kwargs, **texts}

    def _body(self) -> tuple[Sequence[Any] | None, dict[str, Any] | None]:
        args, kwargs, _ = body_if_readable(self.message or {}) or (None, None, None)
        return args, kwargs


def request_of(task: MessageFields) -> Context:
    """Return the request that a worker would make of the message of a task.

    Code that reports the end of a task without a worker needs the request: result backends,
    signals and chords take it. If the body cannot be read, the request has no arguments and no
    canvas. If the message cannot be read, the request has the id only.
    """
    message = task.message
    if message is None:
        return Context(id=getattr(task, "id", None))
    args, kwargs, embedded = body_if_readable(message) or (None, None, {})
    properties = message.get("properties") or {}
    fields = {
        **task.headers,
        **embedded,
        "args": args,
        "kwargs": kwargs,
        "properties": properties,
        "delivery_info": properties.get("delivery_info"),
        **{name: properties.get(name) for name in ("reply_to", "correlation_id")},
    }
    if fields.get("headers") is None:
        # To find out which fields are headers of the app takes Celery most of its time.
        fields["headers"] = {name: fields[name] for name in _app_headers(*fields)} or None
    request = Context.__new__(Context)
    request.update(fields)
    return request


def request_of_record(id: str, record: bytes) -> Context:
    """Return the request of the task *id* from its record, as :func:`request_of` does."""
    try:
        message = message_json.decode(Record.unpack(record).message)
    except RecordError:
        message = None
    if not isinstance(message, dict) or not is_task(message):
        return Context(id=id)
    return request_of(TaskMessage(message))


@lru_cache(maxsize=1024)
def _app_headers(*names: str) -> tuple[str, ...]:
    """Return the names that are no fields of Celery."""
    return tuple(Context(dict.fromkeys(names)).headers or ())


class TaskMessage(MessageFields):
    """A task message without a record or a dead letter around it."""

    __slots__ = ("message",)

    def __init__(self, message: dict[str, Any]) -> None:
        self.message = message
