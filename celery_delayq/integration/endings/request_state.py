"""Whether a task in a worker begins, and who ends a task that has begun. No I/O."""

from __future__ import annotations

from enum import Enum, auto


class RequestState(Enum):
    """State of a task in a worker until it begins. :data:`NEXT_STATES` has the transitions."""

    #: The worker has the task.
    WAITING = auto()
    #: The pool has the task.
    GIVEN = auto()
    #: The task runs, or has run.
    BEGUN = auto()
    #: The worker has refused the task: it does not begin.
    REFUSED = auto()


#: The allowed next states. A thread of the pool enters BEGUN, the worker's loop all others.
NEXT_STATES = {
    RequestState.WAITING: {RequestState.GIVEN, RequestState.BEGUN, RequestState.REFUSED},
    RequestState.GIVEN: {RequestState.BEGUN, RequestState.REFUSED},
    RequestState.BEGUN: set[RequestState](),
    RequestState.REFUSED: set[RequestState](),
}


class EndedBy(Enum):
    """Who ends a task that has begun, where the pool reports this end separately."""

    #: A revoke.
    REVOKE = auto()
    #: A worker that has lost its connection or shuts down: the message is requeued.
    CANCEL = auto()
