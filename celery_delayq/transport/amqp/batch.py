"""Implements :meth:`kombu.Producer.batch` (kombu 5.7 and newer): many messages, one wait."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from celery_delayq.transport.amqp.messages import Routed
from celery_delayq.transport.batch import Batch

#: Most messages sent at once. Messages in a larger batch would wait too long for RabbitMQ to read.
_MAX_BATCH = 100


class PublishBatch(Batch):
    """Buffers messages and sends them together.

    Parameters
    ----------
    channel : Channel
        Prepares the messages, and sends them.
    max_size : int
        Number of buffered messages at which they are sent; at most 100.
    """

    def __init__(self, channel: Any, max_size: int) -> None:
        super().__init__(channel.connection.delayq, "RabbitMQ")
        self.channel = channel
        self._max_size = min(max_size, _MAX_BATCH)
        self._buffered: list[Routed] = []
        self._posted: list[Routed] = []

    def publish(self, message: Any, *, exchange: str, routing_key: str, **_: Any) -> None:
        """Buffer a message. Send all when the buffer is full.

        The broker's answers are read before the next buffer is sent, so that the broker works while
        the buffer fills.
        """
        self._check_usable()
        self._buffered.append(self.channel.routed(message, exchange, routing_key))
        if len(self._buffered) >= self._max_size:
            self._send()

    def flush(self) -> None:
        """Send the buffer and wait until the broker has stored all messages.

        Raises
        ------
        kombu.exceptions.BatchPublishError
            The broker refused a message or went away. Which messages it has stored is unknown.
        """
        self._check_usable()
        self._send()
        self._confirm()

    def _send(self) -> None:
        self._confirm()
        self._posted, self._buffered = self._buffered, []
        try:
            with self.channel.limit_wait():
                self.channel.post(self._posted)
        except Exception as exc:
            raise self._failed(exc) from exc

    def _confirm(self) -> None:
        try:
            with self.channel.limit_wait():
                refused = self.channel.confirmed(self._posted)
        except Exception as exc:
            raise self._failed(exc) from exc
        self._posted = []
        for error in refused.values():
            raise self._failed(error) from error

    def discard(self) -> None:
        """Drop the unsent messages, and read the answers to the sent ones."""
        super().discard()
        # The caller already handles an error.
        with suppress(Exception), self.channel.limit_wait():
            self.channel.refused()

    def _forget(self) -> None:
        self._buffered.clear()
