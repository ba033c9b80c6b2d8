"""Runs the steps of many queues in rounds: the calls of a round are sent together. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar

from celery_delayq.errors import CommandRefused
from celery_delayq.store.scripting.calls import Call, Command, Steps

T = TypeVar("T")


class Rounds(Generic[T]):
    """Collects the calls of each round, and hands out the replies.

    Parameters
    ----------
    steps : Sequence[Steps[T]]
        The steps of each queue.

    Attributes
    ----------
    calls : list[Call | Command]
        The calls of this round; empty when all steps have ended.
    """

    def __init__(self, steps: Sequence[Steps[T]]) -> None:
        self.calls: list[Call | Command] = []
        self._steps = steps
        self._results: dict[int, T | Exception] = {}
        #: Number of calls of each unfinished steps; None for a single call, which is not a list.
        self._sizes: dict[int, int | None] = {}
        self._go_on(dict.fromkeys(range(len(steps))))

    @property
    def results(self) -> list[T | Exception]:
        """The result of each steps, or the error of a refused call."""
        return [self._results[place] for place in range(len(self._steps))]

    def answer(self, replies: Iterable[Any]) -> None:
        """Give the replies to the steps, and collect the next calls.

        An error as the reply to a single call ends its steps.
        """
        found = iter(replies)
        self._go_on(
            {
                place: next(found) if size is None else [*islice(found, size)]
                for place, size in self._sizes.items()
            }
        )

    def _go_on(self, replies: Mapping[int, Any]) -> None:
        self.calls, self._sizes = [], {}
        for place, reply in replies.items():
            steps = self._steps[place]
            if isinstance(reply, Exception):
                steps.close()
                self._results[place] = reply
                continue
            try:
                asked = steps.send(reply)
                while not isinstance(asked, (Call, Command)) and not asked:
                    asked = steps.send([])
            except StopIteration as end:
                self._results[place] = end.value
            except CommandRefused as exc:
                self._results[place] = exc
            else:
                if isinstance(asked, (Call, Command)):
                    self._sizes[place] = None
                    self.calls.append(asked)
                else:
                    self._sizes[place] = len(asked)
                    self.calls += asked
