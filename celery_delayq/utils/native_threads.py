"""Threads, locks and sleeps of the operating system, also where gevent or eventlet patched them.

A greenlet does not run while a task computes; the heartbeat must.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any
from weakref import WeakKeyDictionary

#: Objects whose locks forked children replace, and the names of these attributes.
_LOCK_ATTRIBUTES: WeakKeyDictionary[Any, tuple[str, ...]] = WeakKeyDictionary()
#: The threads that were started here, by their native ids.
_THREAD_IDS: set[int] = set()
#: Log lines of these threads, where eventlet has patched the locks of logging.
_LOG_LINES: deque[Callable[[], None]] = deque()
#: Seconds between two looks at them.
LOG_SECONDS = 0.2


def _original(module: str, name: str) -> Any:
    """Return an attribute of a module as it was before monkey patching."""
    if "gevent.monkey" in sys.modules:
        return import_module("gevent.monkey").get_original(module, name)
    if is_eventlet():
        return getattr(import_module("eventlet.patcher").original(module), name)
    return getattr(import_module(module), name)


def is_eventlet() -> bool:
    """Whether eventlet has patched this process."""
    return "eventlet.patcher" in sys.modules


def are_patched() -> bool:
    """Whether the threads of ``threading`` are greenlets."""
    gevent = sys.modules.get("gevent.monkey")
    return bool(gevent and gevent.is_module_patched("threading")) or are_of_eventlet()


def are_of_eventlet(_owner: Any = None) -> bool:
    """Whether they are greenlets of eventlet."""
    eventlet = sys.modules.get("eventlet.patcher")
    return bool(eventlet and eventlet.is_monkey_patched("thread"))


def is_native() -> bool:
    """Whether the caller runs in a thread that was started here, and so in no greenlet."""
    return ident() in _THREAD_IDS


def ident() -> int:
    """Return the id of the caller's thread, also in a greenlet."""
    found: int = _original("_thread", "get_ident")()
    return found


def lock() -> Any:
    """Return a lock, to be held for a moment only: it blocks the whole thread."""
    return _original("_thread", "allocate_lock")()


def renew_locks(owner: Any, *names: str) -> None:
    """Give *owner* new locks under these names in every forked child.

    There the thread that held one is missing, and nobody would ever release it.
    """
    _LOCK_ATTRIBUTES[owner] = names


def _renew_locks() -> None:
    for owner, names in list(_LOCK_ATTRIBUTES.items()):
        for name in names:
            setattr(owner, name, threading.RLock())


os.register_at_fork(after_in_child=_renew_locks)


class Signal:
    """Wakes one waiting native thread; may be given from any thread or greenlet.

    It stays given until it is taken back, and giving it again costs nothing.
    """

    def __init__(self) -> None:
        self._lock = lock()
        self._lock.acquire()
        self._given = False

    def give(self) -> None:
        """Wake the thread, or let its next wait return at once."""
        if not self._given:
            self._given = True
            with suppress(RuntimeError):  # two gave it at the same moment
                self._lock.release()

    def wait(self, seconds: float) -> None:
        """Return when the signal is given, or after so many seconds."""
        self._lock.acquire(True, max(0.0, seconds))

    def take_back(self) -> None:
        """Let it be given anew. What it may have been given for is looked at after this."""
        self._given = False


def start(function: Callable[[], Any]) -> None:
    """Run *function* in a native thread that does not keep the process alive."""

    def run() -> None:
        me = ident()
        _THREAD_IDS.add(me)
        try:
            function()
        finally:
            _THREAD_IDS.discard(me)

    _original("_thread", "start_new_thread")(run, ())


def sleep(seconds: float) -> None:
    """Sleep without a hub."""
    _original("time", "sleep")(seconds)


def leaving_lines(_owner: Any, write: Callable[..., None]) -> Callable[..., None]:
    """Wrap what writes a log line: a greenlet writes the lines of native threads."""
    eventlet, own_ident = import_module("eventlet"), _original("_thread", "get_ident")

    def write_or_leave(logger: logging.Logger, record: logging.LogRecord) -> None:
        if own_ident() in _THREAD_IDS:
            _LOG_LINES.append(partial(write, logger, record))
        else:
            write(logger, record)

    def keep_saying() -> None:
        while True:
            say()
            eventlet.sleep(LOG_SECONDS)

    eventlet.spawn(keep_saying)
    return write_or_leave


def say() -> None:
    """Write the log lines that native threads have left, in the caller's thread."""
    while _LOG_LINES:
        _LOG_LINES.popleft()()
