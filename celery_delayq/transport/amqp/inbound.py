"""Reads frames from RabbitMQ, also frames that py-amqp cannot read: clients may send any bytes.

In py-amqp an unreadable property ends the connection. RabbitMQ then requeues the message, which
ends the next connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from amqp import spec
from amqp.basic_message import Message
from amqp.exceptions import AMQPError
from amqp.method_framing import frame_handler
from amqp.serialization import loads

from celery_delayq.errors import RecordError
from celery_delayq.transport.amqp.frames import encoded_table
from celery_delayq.utils.foreign import record_errors

#: The header with the error of a message whose properties could not be read.
UNREADABLE_HEADER = "delayq-unreadable"

#: Kinds of frames.
_METHOD_FRAME, _PROPERTIES_FRAME = 1, 2

#: The first bytes of the methods that contain names which another client has chosen.
_DELIVERY_METHODS = tuple(
    class_id.to_bytes(2, "big") + method_id.to_bytes(2, "big")
    for class_id, method_id in (spec.Basic.Deliver, spec.Basic.GetOk, spec.Basic.Return)
)

#: The flag of the headers, and the number of bytes before the flags in a frame of properties.
_HEADERS_FLAG, _BYTES_BEFORE_FLAGS = 0x2000, 12

#: Bytes of properties and of headers' values, by type. Types with a length field are not here.
_PROPERTY_BYTES = {"o": 1, "L": 8}
_VALUE_BYTES = {**dict.fromkeys("tbB", 1), **dict.fromkeys("Uus", 2), **dict.fromkeys("Iif", 4)}
_VALUE_BYTES |= {**dict.fromkeys("LldT", 8), "D": 5, "V": 0}


def tolerant_handler(connection: Any, callback: Callable[..., Any]) -> Callable[[Any], Any]:
    """Return py-amqp's handler of a connection's frames, changed to read every message."""
    handle = frame_handler(connection, callback)

    def on_frame(frame: tuple[int, int, bytes]) -> Any:
        kind, channel, payload = frame
        if kind == _METHOD_FRAME and payload[:4] in _DELIVERY_METHODS and not payload.isascii():
            frame = kind, channel, _with_readable_names(payload)
        try:
            return handle(frame)
        except Exception as exc:
            if kind != _PROPERTIES_FRAME or _is_readable(payload):
                raise
            # py-amqp has begun the message, and waits for its properties.
            return handle((kind, channel, readable_properties(payload, repr(exc))))

    return on_frame


def _is_readable(payload: bytes) -> bool:
    try:
        with record_errors("properties"):
            Message().inbound_header(payload)
    except (RecordError, AMQPError):
        return False
    return True


def _with_readable_names(payload: bytes) -> bytes:
    """Return the payload of a delivery in which all names are UTF-8."""
    parts, at = [payload[:4]], 4
    form = {
        _DELIVERY_METHODS[0]: "sLoss",
        _DELIVERY_METHODS[1]: "Loss",
        _DELIVERY_METHODS[2]: "Bsss",
    }[payload[:4]]
    for kind in form:
        if kind == "s":
            data, at = _short(payload, at)
            parts.append(_utf8(data))
        else:
            end = at + (2 if kind == "B" else _PROPERTY_BYTES[kind])
            parts.append(payload[at:end])
            at = end
    return b"".join((*parts, payload[at:]))


def readable_properties(payload: bytes, why: str) -> bytes:
    """Return a frame of properties with only the readable ones, and a header with the error."""
    flags = int.from_bytes(payload[_BYTES_BEFORE_FLAGS : _BYTES_BEFORE_FLAGS + 2], "big")
    note = encoded_table({UNREADABLE_HEADER: why[:1000]})[4:]
    properties = b""
    try:
        with record_errors("properties"):
            for flag, part in _properties(payload, flags & ~1, note):
                if flag == _HEADERS_FLAG:
                    properties += len(part).to_bytes(4, "big")
                properties += part
    except RecordError:
        flags, properties = 0, len(note).to_bytes(4, "big") + note
    return b"".join(
        (payload[:_BYTES_BEFORE_FLAGS], (flags | _HEADERS_FLAG).to_bytes(2, "big"), properties)
    )


def _properties(payload: bytes, flags: int, note: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the flag and readable bytes of each property; of the headers without their length."""
    at = _BYTES_BEFORE_FLAGS + 2
    for number, (_, kind) in enumerate(Message.PROPERTIES):
        flag = 0x8000 >> number
        if flag == _HEADERS_FLAG:
            headers = note
            if flags & flag:
                end = at + 4 + int.from_bytes(payload[at : at + 4], "big")
                headers = b"".join(_headers(payload[at + 4 : end])) + note
                at = end
            yield flag, headers
        elif not flags & flag:
            continue
        elif kind == "s":
            data, at = _short(payload, at)
            yield flag, _utf8(data)
        else:
            yield flag, payload[at : at + _PROPERTY_BYTES[kind]]
            at += _PROPERTY_BYTES[kind]


def _headers(data: bytes) -> Iterator[bytes]:
    """Yield each readable header."""
    at = 0
    while at < len(data):
        start = at
        name, at = _short(data, at)
        kind, at = chr(data[at]), at + 1
        size = _VALUE_BYTES.get(kind)
        if size is None:
            size = 4 + int.from_bytes(data[at : at + 4], "big")
        at += size
        item = data[start:at]
        try:
            with record_errors("header"):
                name.decode()
                loads("F", len(item).to_bytes(4, "big") + item, 0)
        except (RecordError, AMQPError):
            continue
        yield item


def _short(data: bytes, at: int) -> tuple[bytes, int]:
    """Return the bytes of a short text, and the position after it."""
    start = at + 1
    end = start + data[at]
    return data[start:end], end


def _utf8(data: bytes) -> bytes:
    """Return a short text after its length. Bytes that are not UTF-8 are replaced."""
    text = data.decode("utf-8", "replace").encode()[:255].decode("utf-8", "ignore").encode()
    return len(text).to_bytes(1, "big") + text
