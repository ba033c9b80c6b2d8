"""When a process stops taking messages to make room for a quarantined one."""

from __future__ import annotations

import math
from enum import Enum, auto
from typing import NamedTuple

#: Leases for which a process with long tasks leaves quarantined messages to other processes.
WAIT_LEASES = 10


class RoomState(Enum):
    """Which messages a process takes. A quarantined one goes to a process that holds no other.

    From state to state:

    ================ ============================= ================
    from             by                            to
    ================ ============================= ================
    any              a quarantined message waits   MAKES_ROOM
    MAKES_ROOM       nothing is held               TAKES_ALL
    MAKES_ROOM       one lease later               LEAVES_TO_OTHERS
    LEAVES_TO_OTHERS :data:`WAIT_LEASES` later    TAKES_ALL
    ================ ============================= ================
    """

    #: Any message.
    TAKES_ALL = auto()
    #: None, until nothing is held.
    MAKES_ROOM = auto()
    #: Any but quarantined ones, since its tasks took longer than a lease.
    LEAVES_TO_OTHERS = auto()


class QuarantineRoom(NamedTuple):
    """A state, and the monotonic time *until* which it lasts at most."""

    state: RoomState = RoomState.TAKES_ALL
    until: float = math.inf

    def at(self, now: float, lease: float, *, is_empty: bool) -> QuarantineRoom:
        """Return the room at a time, this one if nothing changes.

        Parameters
        ----------
        now : float
            Monotonic time.
        lease : float
            Seconds.
        is_empty : bool
            Whether the process holds nothing.
        """
        makes_room = self.state is RoomState.MAKES_ROOM
        if makes_room and is_empty:
            return QuarantineRoom()
        if now <= self.until:
            return self
        if makes_room:
            return QuarantineRoom(RoomState.LEAVES_TO_OTHERS, now + WAIT_LEASES * lease)
        return QuarantineRoom()
