"""Numbers of leased messages that a process lost or gave back."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class LeaseTally:
    """Numbers of messages that were not simply acknowledged.

    *foreign_acks* were for tags that are not held here; *late_acks* came when Redis had given the
    message to another process already; *lost* were taken away, *given_back* nobody worked on.
    """

    foreign_acks: int = 0
    late_acks: int = 0
    lost_messages: int = 0
    given_back: int = 0
