"""A client of RabbitMQ that sends any bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any

import amqp
from kombu import Connection

from celery_delayq.transport.amqp.frames import Content, publish_frames
from tests.support import TIMEOUT


class RawClient:
    """Sends messages one by one, on a new connection after RabbitMQ has closed the old one."""

    def __init__(self, url: str) -> None:
        self._connection = Connection(url)

    def __enter__(self) -> RawClient:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _exc: object, _traceback: TracebackType | None
    ) -> None:
        self._connection.release()

    @property
    def channel(self) -> Any:
        channel = self._connection.default_channel
        if not getattr(channel, "is_raw", False):
            channel.is_raw = True
            channel.confirm_select()
        return channel

    def send(self, content: Content, exchange: str, routing_key: bytes) -> bool:
        """Send a message; return whether RabbitMQ has accepted it."""
        channel, confirmed = self.channel, []
        connection = channel.connection
        for event in ("basic_ack", "basic_nack"):
            channel.events[event] = {lambda *_, event=event: confirmed.append(event)}
        frames = publish_frames(channel.channel_id, connection.frame_max, content, exchange, "")
        _, _, size = struct.unpack(">BHI", frames[:7])
        method = frames[7 : 7 + size]
        assert method.endswith(b"\0\0")  # an empty routing key, and no flags
        method = method[:-2] + bytes([len(routing_key)]) + routing_key + b"\0"
        frame = (
            struct.pack(">BHI", 1, channel.channel_id, len(method)) + method + frames[7 + size :]
        )
        try:
            connection.transport.write(frame)
            while not confirmed:
                connection.drain_events(timeout=TIMEOUT)
        except (amqp.exceptions.AMQPError, ConnectionError):
            with suppress(Exception):
                self._connection.collect()
            self._connection = self._connection.clone()
            return False
        return confirmed == ["basic_ack"]

    def send_all(self, contents: Iterable[Content], exchange: str, routing_key: bytes) -> int:
        """Send messages; return how many RabbitMQ has accepted."""
        return sum(self.send(content, exchange, routing_key) for content in contents)
