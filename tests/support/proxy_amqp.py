"""The proxy before RabbitMQ.

A rule names a frame by its method, such as ``Basic.Ack``; ``b""`` is any frame. Faults of requests
hit frames of clients. Faults of replies hit frames of RabbitMQ, which may be no answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from struct import Struct
from typing import Any

from amqp import spec

from tests.support.proxy import ON_REPLY, Call, Proxy, Rule

#: Type, channel and length of the payload; one more byte ends a frame.
_HEADER = Struct(">BHI")
_METHOD = Struct(">HH")

#: The first bytes of a client.
_GREETING = b"AMQP"

#: Frames that are not methods, by type.
_CONTENT = {2: "header", 3: "body", 8: "heartbeat"}


class AmqpFrames:
    """Cuts a stream into frames."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Add *data*, and yield the frames that are complete."""
        self._data += data
        while len(self._data) >= _HEADER.size:
            end = 8
            if not self._data.startswith(_GREETING):
                end = _HEADER.size + _HEADER.unpack_from(self._data)[2] + 1
            if len(self._data) < end:
                return
            yield bytes(self._data[:end])
            del self._data[:end]


@cache
def _methods() -> dict[tuple[int, int], str]:
    """Return the names of AMQP's methods."""
    classes = (each for each in vars(spec).values() if isinstance(each, type))
    return {
        tuple(method): f"{each.__name__}.{name}"
        for each in classes
        for name, method in vars(each).items()
        if isinstance(method, tuple) and len(method) == 2
    }


def _call(raw: bytes) -> Call:
    """Read the name of a frame."""
    if raw.startswith(_GREETING):
        return Call(raw, "greeting")
    kind = raw[0]
    if kind != 1:
        return Call(raw, _CONTENT[kind])
    return Call(raw, _methods()[_METHOD.unpack_from(raw, _HEADER.size)])


class AmqpProxy(Proxy):
    """Forwards connections to a free loopback port, frame by frame."""

    _new_frames: Callable[[], Any] = AmqpFrames
    _read: Callable[[bytes], Call] = staticmethod(_call)

    def _check(self, *labels: str | bytes) -> None:
        known = {*_methods().values(), *_CONTENT.values()}
        for label in labels:
            if isinstance(label, str) and label not in known:
                raise ValueError(f"{label!r}: expected one of {sorted(known)}")

    def _rule_for_reply(self, _link: Any, reply: bytes) -> Rule | None:
        return self._rule_for(_call(reply), ON_REPLY)
