"""Messages that a channel has handed out and that are not acknowledged."""

from __future__ import annotations

import logging
from typing import Any

from kombu.transport import redis as stock
from kombu.transport import virtual
from redis.exceptions import ResponseError

from celery_delayq.integration import worker
from celery_delayq.transport.rejected import RejectsUndecodable, reason_of

logger = logging.getLogger(__name__)


class Message(RejectsUndecodable, virtual.Message):
    """A message that becomes a dead letter when Celery acknowledges it as undecodable."""


class QoS(stock.QoS):
    """kombu's record of unacknowledged messages, with leased messages.

    Messages of temporary queues, such as a worker's own direct queue, are handled by kombu alone.
    """

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a message."""
        if self.channel.leased(delivery_tag):
            at_once = not self.channel.consumer.serves_worker
            self.channel.deliveries.ack(delivery_tag, at_once=at_once)
            self.forget(delivery_tag)
        elif delivery_tag in self._delivered:
            super().ack(delivery_tag)
        else:
            self.channel.deliveries.keeper.release(delivery_tag)  # counts it

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Requeue a message behind all ready ones, or make a dead letter of it."""
        if not self.channel.leased(delivery_tag):
            super().reject(delivery_tag, requeue)
        elif requeue:
            self.channel.deliveries.requeue([delivery_tag], last=True, counted="requeued")
            self.forget(delivery_tag)
        else:
            # Not from `_delivered`, which is empty after a lost connection.
            deliveries = self.channel.deliveries
            message = deliveries.keeper.message_of(delivery_tag)
            id = (getattr(message, "headers", None) or {}).get("id") or delivery_tag
            deliveries.add_dead_letter(delivery_tag, str(id), reason_of(message))
            self.forget(delivery_tag)

    def restore_unacked(self, client: Any = None) -> None:
        """Put back all unacknowledged messages."""
        self.requeue_leased()  # first: kombu's part may fail
        super().restore_unacked(client)

    def requeue_leased(self) -> None:
        """Requeue the leased messages of this channel, and forget them."""
        self._flush()
        leased = [tag for tag in self._delivered if self.channel.leased(tag)]
        for tag in leased:
            del self._delivered[tag]
        if leased:
            reconnects = worker.is_reconnecting(self.channel.main_channel)
            self.channel.deliveries.requeue_unacknowledged(leased, reconnects=reconnects)

    def restore_visible(self, *args: Any, **kwargs: Any) -> None:
        """Put back messages that kombu keeps for killed workers; where Redis refuses, later."""
        try:
            super().restore_visible(*args, **kwargs)
        except ResponseError as exc:
            logger.warning("messages of killed workers are put back later: %s", exc)

    def restore_by_tag(self, tag: str, client: Any = None, leftmost: bool = False) -> None:
        """Put back one message that kombu keeps."""
        try:
            super().restore_by_tag(tag, client, leftmost)
        except (*self.channel.connection_errors, ResponseError):
            raise
        except Exception as exc:
            # An unreadable message must not keep the others from being requeued.
            self.channel.add_dead_letter_unacked(tag, exc)

    def forget(self, delivery_tag: str) -> None:
        """Make room for another message."""
        if delivery_tag in self._delivered:
            virtual.QoS.ack(self, delivery_tag)
        channel = self.channel
        connection = channel.connection  # another thread may close this channel
        # A poller that waits in another thread may request more now.
        if connection is not None and channel.consumer.is_elsewhere:
            connection.cycle.on_credit(channel)
