"""Implements :meth:`kombu.Producer.batch` (kombu 5.7 and newer): many messages, one wait."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from kombu import exceptions

from celery_delayq.transport.amqp.messages import Routed

#: Most messages sent at once. Messages in a larger batch would wait too long for RabbitMQ to read.
_MAX_BATCH = 100


class PublishBatch:
    """Buffers messages and sends them together, by kombu's rules for batches.

    Parameters
    ----------
    channel : Channel
        Prepares the messages, and sends them.
    max_size : int
        Number of buffered messages at which they are sent; at most 100.
    """

    def __init__(self, channel: Any, max_size: int) -> None:
        self.channel = channel
        self._max_size = min(max_size, _MAX_BATCH)
        self._buffered: list[Routed] = []
        self._posted: list[Routed] = []
        self._unusable = ""
        self._transport = channel.connection.delayq
        self._transport.batches += 1

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
        """Drop the unsent messages."""
        self._unusable = "is aborted"
        self._buffered.clear()
        # The caller already handles an error.
        with suppress(Exception), self.channel.limit_wait():
            self.channel.refused()

    def close(self) -> None:
        """Drop the unsent messages, and end the batch."""
        if self._unusable != "is closed":
            self._transport.batches -= 1
        self._unusable = "is closed"
        self._buffered.clear()

    def _failed(self, exc: Exception) -> Exception:
        self._unusable = "cannot be reused after a failure"
        error: Exception = exceptions.BatchPublishError(
            f"RabbitMQ publish batch failed, what it has taken is uncertain: {exc}"
        )
        return error

    def _check_usable(self) -> None:
        if self._unusable:
            error = exceptions.BatchPublishError if "failure" in self._unusable else RuntimeError
            raise error(f"RabbitMQ publish batch {self._unusable}")
