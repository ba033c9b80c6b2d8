"""Create no lock and no condition for each task of a prefork worker.

billiard creates a ``threading.Event`` for each task. In a worker nobody waits for this event: the
event loop calls back. Benchmark row: ``fast-events``.
"""

from __future__ import annotations

import threading
from types import ModuleType
from typing import Any

from celery_delayq.integration.fast.group import Group
from celery_delayq.integration.replace import Replace


class Event:
    """A ``threading.Event`` that creates its lock and condition only when somebody waits."""

    __slots__ = ("_is_set", "_waited_for")

    _lock = threading.Lock()

    def __init__(self) -> None:
        self._is_set = False
        self._waited_for: threading.Event | None = None

    def is_set(self) -> bool:
        """Return whether the event is set."""
        return self._is_set

    def set(self) -> None:
        """Set the event. It cannot be cleared."""
        self._is_set = True
        if self._waited_for is not None:
            self._waited_for.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most *timeout* seconds until the event is set; return whether it is set."""
        with self._lock:
            if self._waited_for is None:
                self._waited_for = threading.Event()
        # `set` writes the flag before it reads `_waited_for`, so one side always sees the other.
        return self._is_set or self._waited_for.wait(timeout)


class _Threading:
    """The module ``threading``, as ``billiard.pool`` uses it, with another class of events."""

    Event = Event

    def __init__(self, stock: ModuleType) -> None:
        self._stock = stock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stock, name)


def with_light_events(_owner: ModuleType, stock: ModuleType) -> _Threading:
    """Return the module ``threading`` with another class of events."""
    return _Threading(stock)


GROUP = Group(
    name="events",
    worker=(
        Replace(
            target="billiard.pool:threading",
            by=with_light_events,
            why="each task gets an event with a lock and a condition, and nobody waits for it",
        ),
    ),
    upstream="billiard: have `ApplyResult` make its event in `wait`, and `ready` read a flag.",
)
