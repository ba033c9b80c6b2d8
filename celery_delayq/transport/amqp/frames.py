"""Encodes a publish as AMQP frames, in a third of py-amqp's time; one write sends many of them."""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Mapping
from struct import Struct
from types import MappingProxyType
from typing import Any, NamedTuple

from amqp.basic_message import Message
from amqp.exceptions import FrameSyntaxError
from amqp.serialization import dumps

from celery_delayq.errors import InvalidOption

#: The octet that ends a frame.
_FRAME_END = b"\xce"

#: Bytes of a frame without its payload.
_FRAME_OVERHEAD_BYTES = 8

_FRAME = Struct(">BHI").pack
_PUBLISH = Struct(">HHH").pack
_CONTENT = Struct(">HHQH").pack
_OCTET = Struct(">B").pack
_SHORT = Struct(">cI").pack
_LONG = Struct(">I").pack
_INTEGER = Struct(">ci").pack

#: Headers whose values are shorter texts, such as the digits of a delay, or have these types are
#: encoded once.
_MAX_CACHED_CHARACTERS = 24
_SCALAR_TYPES = frozenset({type(None), bool, int})

NO_HEADERS: Mapping[str, str] = MappingProxyType({})

#: The numbers of the class ``basic`` and its method ``publish``.
_BASIC_CLASS, _PUBLISH_METHOD = 60, 40


class _EncodingErrors:
    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: Any, exc: BaseException | None, _traceback: Any) -> None:
        if isinstance(exc, (struct.error, FrameSyntaxError, RecursionError)):
            raise InvalidOption(
                f"AMQP cannot write this: {exc}. Names of queues, exchanges and headers and a "
                "routing key have at most 255 bytes, a priority is 0 to 255, headers have types "
                "of JSON and are not nested hundreds deep"
            ) from exc


#: A context that raises ``InvalidOption`` for values that AMQP cannot encode. A context made of a
#: generator takes 10 times as long, and each acknowledgement uses this context.
encoding_errors = _EncodingErrors()


class Content(NamedTuple):
    """An encoded message. Only its last headers are encoded later."""

    #: ``""`` for a message without an id.
    message_id: str
    flags: int
    #: The properties before the headers, the headers, and the properties after them.
    before: bytes
    headers: bytes
    after: bytes
    body: bytes


def encoded(body: bytes | str, properties: Mapping[str, Any]) -> Content:
    """Encode a message.

    Raises
    ------
    InvalidOption
        AMQP cannot encode the message.
    """
    get = properties.get
    content_type, encoding = get("content_type"), get("content_encoding")
    if isinstance(body, str):
        encoding = encoding or "utf-8"
        body = body.encode(encoding)
    after = b""
    with encoding_errors:
        flags, before = _types(content_type, encoding)
        headers = b"".join(_pairs(get("application_headers") or {}))
        for flag, name, encode in _PROPERTIES:
            value = get(name)
            if value is not None:
                flags |= flag
                after += encode(value)
    return Content(get("message_id") or "", flags, before, headers, after, body)


def publish_frames(
    channel_id: int,
    frame_max: int,
    content: Content,
    exchange: str,
    routing_key: str,
    more: Mapping[str, str] = NO_HEADERS,
) -> bytes:
    """Return the frames of a publish. *more* are further headers; they have few different values.

    A message with an id is mandatory: RabbitMQ returns it if no queue gets it, and the id tells
    which message was returned. Tasks and dead letters have an id.

    Raises
    ------
    InvalidOption
        AMQP cannot encode the names, or the headers do not fit in a frame.
    """
    message_id, flags, before, headers, after, body = content
    with encoding_errors:
        method = _method(exchange, routing_key, bool(message_id))
    if more:
        headers += b"".join(map(_pair, more, more.values()))
    header = b"".join(
        (
            _CONTENT(_BASIC_CLASS, 0, len(body), flags),
            before,
            _LONG(len(headers)),
            headers,
            after,
        )
    )
    most = frame_max - _FRAME_OVERHEAD_BYTES
    if len(header) > most:
        raise InvalidOption(
            f"the headers have {len(header):,} bytes: expected at most {most:,} (frame_max)"
        )
    parts = [_FRAME(1, channel_id, len(method)), method, _FRAME_END]
    parts += [_FRAME(2, channel_id, len(header)), header, _FRAME_END]
    for start in range(0, len(body), most):
        piece = body[start : start + most]
        parts += [_FRAME(3, channel_id, len(piece)), piece, _FRAME_END]
    return b"".join(parts)


@functools.lru_cache(maxsize=1024)
def _method(exchange: str, routing_key: str, mandatory: bool) -> bytes:
    return b"".join(
        (
            _PUBLISH(_BASIC_CLASS, _PUBLISH_METHOD, 0),
            _text(exchange),
            _text(routing_key),
            b"\x01" if mandatory else b"\x00",
        )
    )


@functools.lru_cache(maxsize=64)
def _types(content_type: str | None, encoding: str | None) -> tuple[int, bytes]:
    """Return the flags and values of the properties before the headers, and the headers' flag."""
    flags, values = 0x2000, b""
    for flag, value in ((0x8000, content_type), (0x4000, encoding)):
        if value is not None:
            flags |= flag
            values += _text(value)
    return flags, values


def _text(value: str) -> bytes:
    if not isinstance(value, str):
        raise FrameSyntaxError(f"{value!r} is no text")
    data = value.encode("utf-8", "surrogatepass")
    return _OCTET(len(data)) + data


#: Cached: there are few header names.
_name = functools.lru_cache(maxsize=1024)(_text)


def _value(value: Any) -> bytes:
    kind = type(value)
    if kind is str:
        data: bytes = value.encode("utf-8", "surrogatepass")
        return _SHORT(b"S", len(data)) + data
    if value is None:
        return b"V"
    if kind is bool:
        return b"t\x01" if value else b"t\x00"
    if kind is int and -0x80000000 < value < 0x80000000:
        return _INTEGER(b"I", value)
    if kind is dict:
        return b"F" + encoded_table(value)
    if kind is float and not math.isfinite(value):
        raise FrameSyntaxError(f"{value} would end the connection: RabbitMQ cannot read it")
    if kind is list or kind is tuple:
        items = b"".join(map(_value, value))
        return _SHORT(b"A", len(items)) + items
    # py-amqp encodes rare types, as a table of one value: after a length and an empty name.
    table: bytes = dumps("F", [{"": value}])
    return table[5:]


@functools.lru_cache(maxsize=4096, typed=True)
def _pair(name: str, value: Any) -> bytes:
    """Return an encoded header that many messages have."""
    return _name(name) + _value(value)


def _pairs(values: Mapping[str, Any]) -> list[bytes]:
    return [
        _pair(name, value)
        if type(value) in _SCALAR_TYPES
        or (type(value) is str and len(value) < _MAX_CACHED_CHARACTERS)
        else _name(name) + _value(value)
        for name, value in values.items()
    ]


def encoded_table(values: Mapping[str, Any]) -> bytes:
    """Return an encoded table, after its length."""
    data = b"".join(_pairs(values))
    return _LONG(len(data)) + data


_ENCODERS: Mapping[str, Callable[[Any], bytes]] = {
    "s": _text,
    "o": _OCTET,
    "L": Struct(">Q").pack,
}


#: The flag, the name and the encoding function of each property after the headers.
_PROPERTIES = [
    (0x8000 >> number, name, _ENCODERS[kind])
    for number, (name, kind) in enumerate(Message.PROPERTIES)
    if number > 2
]
