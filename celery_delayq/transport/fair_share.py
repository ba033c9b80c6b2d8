"""How many messages to request from which queue. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

#: Most seconds to deliver one message for a consumer to take several at once.
QUICK_DELIVERY_SECONDS = 0.002

#: Most messages of one batch.
MAX_BATCH = 64

#: Messages that one request asks for at least, where there are enough: a request for each message
#: would cost several times as much. With more queues than free slots, two or more queues get a
#: request, and the others the next time. Each shard of a cluster asks for at least as many.
MESSAGES_PER_QUEUE = 4


@dataclass(slots=True)
class BatchSize:
    """The number of messages to take at once.

    The number doubles while messages are delivered quickly. After a slow delivery it is 1, so that
    a solo worker leases no message that another worker could run.
    """

    size: int = 1

    def note_delivery(self, count: int, seconds: float) -> None:
        """Adapt the size after the delivery of *count* messages took *seconds*."""
        self.size = (
            min(2 * self.size, MAX_BATCH) if seconds <= count * QUICK_DELIVERY_SECONDS else 1
        )


class Share(NamedTuple):
    """A request: up to *limit* messages from the first *lists* ready lists of a queue."""

    queue: str
    limit: int
    lists: int


@dataclass(slots=True)
class FairShare:
    """Shares the number of messages that may be taken among the queues.

    Queues whose most urgent messages have the same priority take turns. A queue with less urgent
    messages waits. A turn is one message, or a few with more queues than free slots. The last reply
    tells whether a queue is empty. An empty queue gets no request until a wake-up comes for it.
    """

    #: By queue: the number of the first ready list with messages; 0 if all lists are empty.
    _first_lists: dict[str, int] = field(default_factory=dict)
    #: The queue whose message waits to be delivered alone, ``""`` for none.
    _alone_queue: str = ""

    def serve_alone(self, queue: str) -> None:
        """Request next only one message of a queue, which must be delivered alone."""
        self._alone_queue = queue

    def note_first_list(self, queue: str, first: int) -> None:
        """Note the number of the first ready list of *queue* with messages, 0 for none."""
        self._first_lists[queue] = first

    def forget(self, queues: Iterable[str]) -> None:
        """Forget what is known of queues: they may have new messages."""
        for queue in queues:
            self._first_lists.pop(queue, None)

    def has_more(self, queues: Iterable[str]) -> bool:
        """Return whether some of the queues is known to have messages."""
        return any(self._first_lists.get(queue) for queue in queues)

    def find_empty(self, queues: Iterable[str]) -> list[str]:
        """Return which of the queues are known to be empty."""
        return [queue for queue in queues if self._first_lists.get(queue) == 0]

    def find_less_urgent(self, queues: Iterable[str]) -> list[tuple[str, int]]:
        """Return the queues that wait behind more urgent ones, each with the number of its more
        urgent ready lists, which were empty.
        """
        return [
            (queue, self._first_lists[queue] - 1)
            for queue in queues
            if self._first_lists.get(queue, 0) > 1
        ]

    def in_turn(self, order: Sequence[str], *, fair: bool) -> list[str]:
        """Return the queues that may get a request: the most urgent of those with messages."""
        filled = [queue for queue in order if self._first_lists.get(queue) != 0]
        best = min((self._first_lists.get(queue, 1) for queue in filled), default=0)
        tier = [queue for queue in filled if self._first_lists.get(queue, 1) == best]
        return tier if fair else tier[:1]

    def deal(self, order: Sequence[str], credit: int, lists: int, *, fair: bool) -> list[Share]:
        """Return the requests to make while *credit* messages may be taken.

        Parameters
        ----------
        order : Sequence[str]
            The queues, the one whose turn it is first.
        lists : int
            How many ready lists each queue has.
        fair : bool
            Share among the queues; else the first queue with messages gets all.
        """
        if credit <= 0:
            return []
        alone, self._alone_queue = self._alone_queue, ""
        if alone in order:
            return [Share(alone, 1, lists)]
        filled = [queue for queue in order if self._first_lists.get(queue) != 0]
        if len(filled) == 1:
            return [Share(filled[0], credit, lists)]
        tier = self.in_turn(filled, fair=fair)
        if len(tier) > credit and self.has_more(tier):
            tier = tier[: min(credit, max(2, ceil(credit / MESSAGES_PER_QUEUE)))]
        tier = tier[:credit]
        if not tier:
            return []
        best = self._first_lists.get(tier[0], 1)
        each, more = divmod(credit, len(tier))
        return [Share(queue, each + (place < more), best) for place, queue in enumerate(tier)]
