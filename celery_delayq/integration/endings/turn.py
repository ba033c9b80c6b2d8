"""Whether a task of a worker begins, and who ends one that has begun. No I/O."""

from __future__ import annotations

from enum import Enum, auto


class Turn(Enum):
    """Where a task of a worker is, up to its beginning. :data:`NEXT_TURNS` has the transitions."""

    #: The worker has it.
    WAITING = auto()
    #: The pool has it.
    GIVEN = auto()
    #: It runs, or has run.
    BEGUN = auto()
    #: The worker has refused it, and it does not begin.
    REFUSED = auto()


#: What may follow a turn. A thread of the pool enters BEGUN, the worker's loop all others.
NEXT_TURNS = {
    Turn.WAITING: {Turn.GIVEN, Turn.BEGUN, Turn.REFUSED},
    Turn.GIVEN: {Turn.BEGUN, Turn.REFUSED},
    Turn.BEGUN: set[Turn](),
    Turn.REFUSED: set[Turn](),
}


class EndedBy(Enum):
    """Who ends a task that has begun, where the pool reports that as an end of its own."""

    #: A revoke.
    REVOKE = auto()
    #: A worker that has lost its connection, or shuts down: the message goes back.
    CANCEL = auto()
