"""Which queue to ask for how much next. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

#: Delivering a message takes this many seconds at most where taking several at once is worth it.
QUICK_DELIVERY_SECONDS = 0.002

#: Most messages to ask for at once.
MAX_BATCH = 64

#: With more queues than free slots, two or more are asked for about so many messages each, and the
#: others the next time; a shard of a cluster asks for as many at least. A call for each message
#: costs several times as much.
MESSAGES_PER_QUEUE = 4


@dataclass(slots=True)
class BatchSize:
    """How many messages to take at once.

    Twice as many each time while they go quickly, to the pool or through it; one at a time when
    one took long, so that a solo worker does not hold what another could run.
    """

    size: int = 1

    def after(self, count: int, seconds: float) -> None:
        """Learn from *count* messages that took *seconds* to deliver."""
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

    Queues whose most urgent message is of the same priority take turns, a queue with less urgent
    ones waits. They take turns one message at a time; with more queues than free slots, a few at a
    time. What is in a queue is known from the last answer; an empty one is not asked again until
    something tells that it has got something.
    """

    #: By queue: the place of the first ready list with something left, 0 when all are empty.
    _first_lists: dict[str, int] = field(default_factory=dict)
    #: The queue whose message waits to be delivered alone, ``""`` for none.
    _alone_queue: str = ""

    def serve_alone(self, queue: str) -> None:
        """Ask next for one message of a queue only, since it must be delivered alone."""
        self._alone_queue = queue

    def note_first_list(self, queue: str, first: int) -> None:
        """Take note of the first ready list of *queue* with something left, 0 for none."""
        self._first_lists[queue] = first

    def forget(self, queues: Iterable[str]) -> None:
        """Ask these again: they may have got something."""
        for queue in queues:
            self._first_lists.pop(queue, None)

    def has_more(self, queues: Iterable[str]) -> bool:
        """Return whether some of the queues is known to have something left."""
        return any(self._first_lists.get(queue) for queue in queues)

    def find_empty(self, queues: Iterable[str]) -> list[str]:
        """Return which of the queues are known to be empty."""
        return [queue for queue in queues if self._first_lists.get(queue) == 0]

    def find_less_urgent(self, queues: Iterable[str]) -> list[tuple[str, int]]:
        """Return which of the queues wait behind more urgent ones, and how many of their ready
        lists were empty before the first that was not.
        """
        return [
            (queue, self._first_lists[queue] - 1)
            for queue in queues
            if self._first_lists.get(queue, 0) > 1
        ]

    def deal(self, order: Sequence[str], credit: int, lists: int, *, fair: bool) -> list[Share]:
        """Return what to ask for with *credit* messages that may be taken.

        Parameters
        ----------
        order : Sequence[str]
            The queues, the one whose turn it is first.
        lists : int
            How many ready lists each queue has.
        fair : bool
            Share among the queues; else the first with something gets all.
        """
        if credit <= 0:
            return []
        alone, self._alone_queue = self._alone_queue, ""
        if alone in order:
            return [Share(alone, 1, lists)]
        filled = [queue for queue in order if self._first_lists.get(queue) != 0]
        if len(filled) == 1:
            return [Share(filled[0], credit, lists)]
        best = min((self._first_lists.get(queue, 1) for queue in filled), default=0)
        tier = [queue for queue in filled if self._first_lists.get(queue, 1) == best]
        if len(tier) > credit and self.has_more(tier):
            tier = tier[: min(credit, max(2, ceil(credit / MESSAGES_PER_QUEUE)))]
        tier = tier[: credit if fair else 1]
        if not tier:
            return []
        each, more = divmod(credit, len(tier))
        return [Share(queue, each + (place < more), best) for place, queue in enumerate(tier)]
