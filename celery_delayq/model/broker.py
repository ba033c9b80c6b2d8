"""How a delivery ends on a broker, Redis or RabbitMQ.

Each broker has its class of :class:`Deliveries`; ``tests/contract/test_broker.py`` tests them all.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from celery_delayq.settings import Settings


@runtime_checkable
class Deliveries(Protocol):
    """Ends deliveries of messages, also after their connection was lost.

    A delivery tag names the message. It ends in one of: acknowledged, given back, dead letter.
    kombu's channel does the first two, by ``basic_ack`` and ``basic_reject``.
    """

    settings: Settings

    def note_failure(
        self, tag: str, *, crashed: bool = False, reason: str | None = None, details: bytes = b""
    ) -> bool:
        """Note why a message is about to be given back or rejected.

        Parameters
        ----------
        crashed : bool
            Whether its process died; so many deaths make a dead letter of it (``max_deliveries``).
        reason : str | None
            The reason of the dead letter.
        details : bytes
            Its details, by ``pack_details``.

        Returns
        -------
        bool
            Whether this process has the message.
        """
        ...

    def note_cancelled(self, tag: str) -> None:
        """Note that nobody works on a message any more: it may be given back."""
        ...

    def add_dead_letter(self, tag: str, id: str, reason: str) -> bool:
        """Make a dead letter of a message; return whether this process had it."""
        ...

    def add_dead_letter_copy(
        self, tag: str, queue: str, id: str, reason: str, message: bytes, details: bytes
    ) -> None:
        """Make a dead letter of a message that is acknowledged already, or soon.

        In a solo worker the acknowledgement waits for the end of the task.
        """
        ...


def is_leased(channel: Any, tag: Any) -> bool:
    """Return whether a message came by a channel of ours to Redis, which leases it."""
    return hasattr(channel, "leased") and channel.leased(tag)


def deliveries_of(channel: Any, tag: Any) -> Deliveries | None:
    """Return what ends the delivery of a message; None for a transport that is not ours."""
    if hasattr(channel, "leased") and not channel.leased(tag):
        return None
    found: Deliveries | None = getattr(channel, "deliveries", None)
    return found
