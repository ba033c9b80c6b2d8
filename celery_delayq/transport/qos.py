"""Messages that a channel has handed out and that are not acknowledged."""

from __future__ import annotations

import sys
from typing import Any

from kombu.transport import redis as stock
from kombu.transport import virtual


class Message(virtual.Message):
    """A message that becomes a dead letter if it is acknowledged because it is undecodable."""

    undecodable: BaseException | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.errors:  # its body cannot be decompressed
            _, self.undecodable, _ = self.errors[0]

    def _decode(self) -> Any:
        try:
            return super()._decode()
        except Exception as exc:
            self.undecodable = exc
            raise

    def ack(self, multiple: bool = False) -> None:
        """Acknowledge; Celery and kombu do so too with what they cannot decode."""
        if self.undecodable is None:
            super().ack(multiple)
        else:
            self.reject()


def _reason(message: Any) -> str:
    """Return why a message is being rejected, as far as the current exception says."""
    exc = getattr(message, "undecodable", None)
    if exc is not None:
        return f"undecodable message: {exc}"
    handled = sys.exc_info()[1]
    name = (getattr(message, "headers", None) or {}).get("task")
    if isinstance(handled, KeyError) and name in handled.args:
        return f"unknown task {name!r}"
    return "rejected" if handled is None else f"rejected: {type(handled).__name__}: {handled}"


class QoS(stock.QoS):
    """kombu's record of unacknowledged messages, for those that the process leases.

    Messages of queues that do not last, such as a worker's own direct queue, stay with kombu.
    """

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a message."""
        if self.channel.leased(delivery_tag):
            self.channel.acknowledge(delivery_tag)
            self.forget(delivery_tag)
        elif delivery_tag in self._delivered:
            super().ack(delivery_tag)
        else:
            self.channel.keeper.drop(delivery_tag)  # counts it

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Put a message back behind all that is ready, or make a dead letter of it."""
        if not self.channel.leased(delivery_tag):
            super().reject(delivery_tag, requeue)
        elif requeue:
            self.channel.requeue([delivery_tag], last=True, counted="requeued")
            self.forget(delivery_tag)
        else:
            # Not of `_delivered`, which is empty once the connection was lost.
            message = self.channel.keeper.message_of(delivery_tag)
            id = (getattr(message, "headers", None) or {}).get("id") or delivery_tag
            self.channel.add_dead_letter(delivery_tag, str(id), _reason(message))
            self.forget(delivery_tag)

    def restore_unacked(self, client: Any = None) -> None:
        """Put back all unacknowledged messages."""
        self._flush()
        leased = [tag for tag in self._delivered if self.channel.leased(tag)]
        for tag in leased:
            del self._delivered[tag]
        super().restore_unacked(client)
        self.channel.hand_back(leased)

    def restore_by_tag(self, tag: str, client: Any = None, leftmost: bool = False) -> None:
        """Put back one message that kombu keeps."""
        try:
            super().restore_by_tag(tag, client, leftmost)
        except self.channel.connection_errors:
            raise
        except Exception as exc:
            # One that cannot be read must not keep the others from coming back.
            self.channel.add_dead_letter_held(tag, exc)

    def forget(self, delivery_tag: str) -> None:
        """Make room for another message."""
        if delivery_tag in self._delivered:
            virtual.QoS.ack(self, delivery_tag)
        self.channel.on_credit()
