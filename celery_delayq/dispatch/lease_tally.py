"""Numbers of leased messages that a process lost or gave back."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class LeaseTally:
    """Counts of messages that were not simply acknowledged.

    Attributes
    ----------
    foreign_acks : int
        Acknowledgements of messages that are not leased to this process.
    late_acks : int
        Acknowledgements of messages that Redis had already given to another process.
    lost_messages : int
        Messages that Redis had given to another process.
    given_back : int
        Requeued messages.
    """

    foreign_acks: int = 0
    late_acks: int = 0
    lost_messages: int = 0
    given_back: int = 0
