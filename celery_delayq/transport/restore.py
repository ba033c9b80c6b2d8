"""What kombu keeps for a channel, and what cannot be read: messages that are not leased."""

from __future__ import annotations

import logging
from typing import Any
from uuid import uuid4

from kombu.pidbox import Mailbox

from celery_delayq.model import envelope
from celery_delayq.store.scripting.replies import Held
from celery_delayq.transport.publish import PublishChannel

logger = logging.getLogger(__name__)

#: Prefix and suffix of the names of reply exchanges of remote control.
_REPLY_PREFIX, _REPLY_SUFFIX = Mailbox.reply_exchange_fmt.split("%s")


class RestoreChannel(PublishChannel):
    """A channel that drops nothing of what it cannot put back."""

    def _do_restore_message(
        self, payload: Any, exchange: str, routing_key: str, *rest: Any
    ) -> None:
        """Put back a message that kombu keeps; a reply without a bound queue is dropped."""
        if not self._lookup(exchange, routing_key):
            if exchange.startswith(_REPLY_PREFIX) and exchange.endswith(_REPLY_SUFFIX):
                return  # whoever asked the workers has gone
            raise LookupError(f"no queue is bound to exchange {exchange!r} for {routing_key!r}")
        super()._do_restore_message(payload, exchange, routing_key, *rest)

    def held(self, tag: str) -> Held:
        """Return where kombu keeps the message *tag* while a stock worker holds it."""
        stock_name = self.store.keys.stock
        return Held(stock_name(self.unacked_key), stock_name(self.unacked_index_key), tag)

    def add_dead_letter_held(self, tag: str, exc: Exception) -> None:
        """Make a dead letter of a message that kombu keeps and that cannot be put back."""
        held = self.held(tag)
        item = self.store.held_message(held)
        if item is not None:
            self.add_dead_letter_item(_queue_of(item) or self.unacked_key, item, exc)
        # In this order: an index without its message does no harm.
        self.store.client.hdel(held.unacked, tag)
        self.store.client.zrem(held.unacked_index, tag)

    def add_dead_letter_item(self, queue: str, item: bytes, exc: Exception) -> None:
        log_undecodable(queue, item, exc)
        self.store.add_dead_letter(
            queue, f"undecodable-{uuid4()}", f"undecodable message: {exc}", item
        )


def log_undecodable(queue: str, item: bytes, exc: Exception) -> None:
    logger.error(
        "An undecodable message in queue %r is now a dead letter: %s: %r", queue, exc, item[:200]
    )


def _queue_of(held: bytes) -> str | None:
    """Return the routing key behind a held message that cannot be read."""
    try:
        queue = envelope.decode(held.rpartition(b", ")[2].removesuffix(b"]"))
    except Exception:
        return None
    return queue if isinstance(queue, str) and held.startswith(b"[") else None
