"""When a process takes no messages, to make room for a quarantined message."""

from __future__ import annotations

import math
from enum import Enum, auto
from typing import NamedTuple

#: Time, in leases, for which a process with long tasks leaves quarantined messages to others.
WAIT_LEASES = 10


class RoomState(Enum):
    """Which messages a process takes.

    A quarantined message goes to a process without other leased messages.

    From state to state:

    ================ ============================= ================
    from             by                            to
    ================ ============================= ================
    any              a quarantined message waits   MAKES_ROOM
    MAKES_ROOM       no message is leased          TAKES_ALL
    MAKES_ROOM       one lease later               LEAVES_TO_OTHERS
    LEAVES_TO_OTHERS :data:`WAIT_LEASES` later     TAKES_ALL
    ================ ============================= ================
    """

    #: Any message.
    TAKES_ALL = auto()
    #: No message, until none is leased.
    MAKES_ROOM = auto()
    #: Any message but quarantined ones: the tasks of this process took longer than a lease.
    LEAVES_TO_OTHERS = auto()


class QuarantineRoom(NamedTuple):
    """A state, and the monotonic time *until* which the state lasts at most."""

    state: RoomState = RoomState.TAKES_ALL
    until: float = math.inf

    def at(self, now: float, lease: float, *, is_empty: bool) -> QuarantineRoom:
        """Return the room at a time: this object if the state stays the same.

        Parameters
        ----------
        now : float
            Monotonic time.
        lease : float
            Seconds.
        is_empty : bool
            Whether no message is leased to the process.
        """
        makes_room = self.state is RoomState.MAKES_ROOM
        if makes_room and is_empty:
            return QuarantineRoom()
        if now <= self.until:
            return self
        if makes_room:
            return QuarantineRoom(RoomState.LEAVES_TO_OTHERS, now + WAIT_LEASES * lease)
        return QuarantineRoom()
