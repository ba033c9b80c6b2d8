"""How a delivery ends on a broker, Redis or RabbitMQ.

Each broker has its class of :class:`Deliveries`; ``tests/contract/test_broker.py`` tests them all.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from celery_delayq.settings import Settings


@runtime_checkable
class Deliveries(Protocol):
    """Ends deliveries of messages, also after their connection was lost.

    A delivery tag names the message. A delivery ends when the message is acknowledged, requeued or
    made a dead letter. kombu's channel acknowledges (``basic_ack``) and requeues
    (``basic_reject``).
    """

    settings: Settings

    def note_failure(
        self, tag: str, *, crashed: bool = False, reason: str | None = None, details: bytes = b""
    ) -> bool:
        """Note why a message is about to be requeued or rejected.

        Parameters
        ----------
        crashed : bool
            Whether the process of the message died. After ``max_deliveries`` such deliveries the
            next one makes the message a dead letter.
        reason : str | None
            The reason of the dead letter.
        details : bytes
            The details of the dead letter, packed by ``pack_details``.

        Returns
        -------
        bool
            Whether this process has the message.
        """
        ...

    def note_cancelled(self, tag: str) -> None:
        """Note that this process no longer works on a message, so that it may be requeued."""
        ...

    def add_dead_letter(self, tag: str, id: str, reason: str) -> bool:
        """Make a dead letter of a message; return whether this process had it."""
        ...

    def add_dead_letter_copy(
        self, tag: str, queue: str, id: str, reason: str, message: bytes, details: bytes
    ) -> None:
        """Add a dead letter for a message that is acknowledged by another call.

        That call may come later: a solo worker acknowledges at the end of the task.
        """
        ...


def is_leased(channel: Any, tag: Any) -> bool:
    """Return whether our Redis channel delivered a message, so that the message is leased."""
    return hasattr(channel, "leased") and channel.leased(tag)


def deliveries_of(channel: Any, tag: Any) -> Deliveries | None:
    """Return the object that ends the delivery of a message; None for a foreign transport."""
    if hasattr(channel, "leased") and not channel.leased(tag):
        return None
    found: Deliveries | None = getattr(channel, "deliveries", None)
    return found
