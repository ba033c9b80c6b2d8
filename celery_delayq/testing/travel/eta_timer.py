"""Keeps the tasks that a worker keeps in memory until their ETA, since they have no schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

from kombu.asynchronous.timer import Entry, Timer

from celery_delayq.model.envelope import due_of_eta


class EtaTimer(Timer):
    """The timer of a worker without threads. Celery's consumer adds a call for each such task.

    These are tasks of temporary queues and of ``task_protocol = 1``. kombu's times do not move with
    the clocks of a test, so the ETA of the request counts.
    """

    def __init__(self) -> None:
        super().__init__()
        self._numbers = count()
        #: By due time in ms since 1970 and place in the order of arrival.
        self._calls: dict[tuple[int, int], Entry] = {}

    def call_at(
        self,
        _eta: Any,
        fun: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> Entry:
        """Note a call for the request in *args*; return its entry."""
        entry = self.Entry(fun, args, kwargs)
        self._calls[due_of_eta(args[0].eta).ms, next(self._numbers)] = entry
        return entry

    @property
    def next_ms(self) -> int | None:
        """When the next call is due, in ms since 1970; None for no call."""
        return min(self._calls, default=(None,))[0]

    def pop_due(self, now_ms: int, is_wanted: Callable[[Any], bool]) -> Entry | None:
        """Remove and return the next call that is due for a wanted request; None for no call."""
        for place in sorted(self._calls):
            if place[0] <= now_ms and is_wanted(self._calls[place].args[0]):
                return self._calls.pop(place)
        return None

    def clear(self) -> None:
        """Forget all calls: the messages of their requests go back to the queues."""
        super().clear()
        self._calls.clear()
