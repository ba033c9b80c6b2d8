"""A publish as AMQP frames: encoded in a third of py-amqp's time, so that many are one write."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from struct import Struct
from typing import Any

from amqp.basic_message import Message
from amqp.exceptions import FrameSyntaxError
from amqp.serialization import dumps

from celery_delayq.errors import InvalidOption

#: The octet that ends a frame.
_END = b"\xce"

#: Bytes of a frame beside its payload.
_OVERHEAD = 8

_FRAME = Struct(">BHI").pack
_PUBLISH = Struct(">HHH").pack
_CONTENT = Struct(">HHQH").pack
_OCTET = Struct(">B").pack
_SHORT = Struct(">cI").pack
_LONG = Struct(">I").pack
_INTEGER = Struct(">ci").pack

#: Headers with shorter values, such as the digits of a delay, are encoded once.
_COMMON = 4

#: The class of ``basic`` and its method ``publish``.
_BASIC, _METHOD = 60, 40


@contextmanager
def encoding_errors() -> Iterator[None]:
    """Raise ``InvalidOption`` for what AMQP cannot write."""
    try:
        yield
    except (struct.error, FrameSyntaxError) as exc:
        raise InvalidOption(
            f"AMQP cannot write this: {exc}. Names of queues, exchanges and headers and a routing "
            "key have at most 255 bytes, a priority is 0 to 255, headers have types of JSON"
        ) from exc


@encoding_errors()
def publishing(
    channel_id: int,
    frame_max: int,
    message: Any,
    exchange: str,
    routing_key: str,
    *,
    mandatory: bool,
) -> bytes:
    """Return the frames of a publish.

    Raises
    ------
    InvalidOption
        A name or the routing key is longer than 255 bytes, or the headers do not fit in a frame.
    """
    properties = message.properties
    body = message.body
    if isinstance(body, str):
        body = body.encode(properties.setdefault("content_encoding", "utf-8"))
    flags, values = 0, b""
    for flag, name, encode in _PROPERTIES:
        value = properties.get(name)
        if value is not None:
            flags |= flag
            values += encode(value)
    method = b"".join(
        (
            _PUBLISH(_BASIC, _METHOD, 0),
            _text(exchange),
            _text(routing_key),
            b"\x01" if mandatory else b"\x00",
        )
    )
    header = _CONTENT(_BASIC, 0, len(body), flags) + values
    most = frame_max - _OVERHEAD
    if len(header) > most:
        raise InvalidOption(
            f"the headers have {len(header):,} bytes: expected at most {most:,} (frame_max)"
        )
    parts = [_FRAME(1, channel_id, len(method)), method, _END]
    parts += [_FRAME(2, channel_id, len(header)), header, _END]
    for start in range(0, len(body), most):
        piece = body[start : start + most]
        parts += [_FRAME(3, channel_id, len(piece)), piece, _END]
    return b"".join(parts)


def _text(value: str) -> bytes:
    data = value.encode("utf-8", "surrogatepass")
    return _OCTET(len(data)) + data


#: Names of headers are few.
_name = functools.lru_cache(maxsize=1024)(_text)


@functools.lru_cache(maxsize=4096)
def _pair(name: str, value: str | None) -> bytes:
    """Return a header that many messages have."""
    if value is None:
        return _name(name) + b"V"
    data = value.encode("utf-8", "surrogatepass")
    return _name(name) + _SHORT(b"S", len(data)) + data


def _table(values: Mapping[str, Any]) -> bytes:
    parts = []
    for name, value in values.items():
        kind = type(value)
        if value is None or (kind is str and len(value) < _COMMON):
            parts.append(_pair(name, value))
        elif kind is str:
            data = value.encode("utf-8", "surrogatepass")
            parts += (_name(name), _SHORT(b"S", len(data)), data)
        elif kind is int and -0x80000000 < value < 0x80000000:
            parts += (_name(name), _INTEGER(b"I", value))
        else:
            # Rare ones as py-amqp does it: a table of one, without its length.
            parts.append(dumps("F", [{name: value}])[4:])
    data = b"".join(parts)
    return _LONG(len(data)) + data


_ENCODERS: Mapping[str, Callable[[Any], bytes]] = {
    "s": _text,
    "F": _table,
    "o": _OCTET,
    "L": Struct(">Q").pack,
}


#: The flag of each property, its name, and how it is encoded.
_PROPERTIES = [
    (0x8000 >> number, name, _ENCODERS[kind])
    for number, (name, kind) in enumerate(Message.PROPERTIES)
]
