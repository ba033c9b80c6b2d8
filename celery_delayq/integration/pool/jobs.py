"""Objects that a prefork pool makes for each task, without the parts that a worker never uses."""

from __future__ import annotations

import threading
from types import ModuleType
from typing import Any


class Event:
    """A ``threading.Event`` that gets its lock and its condition when somebody waits for it.

    ``billiard`` makes one for each task. In a worker nobody waits: the event loop calls back.
    """

    __slots__ = ("_is_set", "_waited_for")

    _lock = threading.Lock()

    def __init__(self) -> None:
        self._is_set = False
        self._waited_for: threading.Event | None = None

    def is_set(self) -> bool:
        """Return whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Set it, for good."""
        self._is_set = True
        if self._waited_for is not None:
            self._waited_for.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, at most *timeout* seconds; return whether it is."""
        with self._lock:
            if self._waited_for is None:
                self._waited_for = threading.Event()
        # `set` notes first, and then looks for who waits: one of the two sees the other.
        return self._is_set or self._waited_for.wait(timeout)


class _Threading:
    """The module ``threading`` for who makes an event for each task."""

    Event = Event

    def __init__(self, stock: ModuleType) -> None:
        self._stock = stock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stock, name)


def with_light_events(_owner: ModuleType, stock: ModuleType) -> _Threading:
    """Return the module ``threading`` with other events."""
    return _Threading(stock)
