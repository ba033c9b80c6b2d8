"""Threads, locks and sleeps of the operating system, even if gevent or eventlet patched them.

A greenlet does not run while a task computes, but the heartbeat has to run.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property, partial
from importlib import import_module
from inspect import isclass
from typing import Any
from weakref import WeakKeyDictionary

#: Objects whose locks are replaced in forked children, and the attributes with these locks.
_LOCK_ATTRIBUTES: WeakKeyDictionary[Any, tuple[str, ...]] = WeakKeyDictionary()
#: The native ids of the threads that :func:`start` started.
_THREAD_IDS: set[int] = set()
#: Deferred log lines of these threads, where greenlets have patched the locks of logging.
_LOG_LINES: deque[Callable[[], None]] = deque()
#: Seconds between two writes of the deferred log lines.
LOG_INTERVAL_SECONDS = 0.2


def _original(module: str, name: str) -> Any:
    """Return the attribute that a module had before monkey patching."""
    if "gevent.monkey" in sys.modules:
        return import_module("gevent.monkey").get_original(module, name)
    if is_eventlet_patched():
        return getattr(import_module("eventlet.patcher").original(module), name)
    return getattr(import_module(module), name)


def is_eventlet_patched() -> bool:
    """Whether eventlet has patched this process."""
    return "eventlet.patcher" in sys.modules


def has_green_threads(_owner: Any = None) -> bool:
    """Whether the threads of ``threading`` are greenlets."""
    return _patched_by() is not None


def _patched_by() -> str | None:
    """Return the package whose greenlets the threads of ``threading`` are."""
    gevent, eventlet = map(sys.modules.get, ("gevent.monkey", "eventlet.patcher"))
    if gevent and gevent.is_module_patched("threading"):
        return "gevent"
    return "eventlet" if eventlet and eventlet.is_monkey_patched("thread") else None


def is_native() -> bool:
    """Whether the caller runs in a thread that :func:`start` started."""
    return ident() in _THREAD_IDS


def ident() -> int:
    """Return the id of the caller's thread, also in a greenlet."""
    return original_ident()()


def original_ident() -> Callable[[], int]:
    """Return the function that :func:`ident` calls, for frequent calls."""
    found: Callable[[], int] = _original("_thread", "get_ident")
    return found


def lock() -> Any:
    """Return a lock to hold for a moment only: waiting for the lock blocks the whole thread."""
    return _original("_thread", "allocate_lock")()


def reentrant_lock(_owner: Any, _lock: Any) -> Any:
    """Return a reentrant lock to use instead of one that greenlets have patched.

    Only for locks that are held for a moment: no greenlet may run another one meanwhile.
    """
    # A subclass: a change to Celery sets an attribute of the object that it has put in place.
    return type("RLock", (_original("_thread", "RLock"),), {})()


def renew_locks(owner: Any, *names: str) -> None:
    """Give *owner* new locks under these names in every forked child.

    A forked child lacks the thread that holds a lock, so the lock would never be released.
    """
    _LOCK_ATTRIBUTES[owner] = names


def renew_property_locks(*packages: str) -> None:
    """Give each cached property of *packages* a new lock in every forked child.

    Where greenlets are patched in, also give each a lock of the operating system now: native
    threads and greenlets use the same properties. All instances share that lock, and a thread holds
    it while it computes a value. `functools` has such locks before Python 3.12, kombu always. Only
    classes of loaded modules are visited.
    """
    is_shared = has_green_threads()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in packages:
            for owner in filter(isclass, list(vars(module).values())):
                for each in vars(owner).values():
                    if isinstance(each, cached_property) and hasattr(each, "lock"):
                        renew_locks(each, "lock")
                        if is_shared:
                            each.lock = reentrant_lock(each, each.lock)


def _renew_locks() -> None:
    for owner, names in list(_LOCK_ATTRIBUTES.items()):
        for name in names:
            setattr(owner, name, threading.RLock())


os.register_at_fork(after_in_child=_renew_locks)


class Event:
    """Wakes one waiting native thread. Any thread or greenlet may set the event.

    The event stays set until :meth:`clear`.
    """

    def __init__(self) -> None:
        self._lock = lock()
        self._lock.acquire()
        self._is_set = False

    def set(self) -> None:
        """Wake the thread, or let its next wait return at once."""
        if not self._is_set:
            self._is_set = True
            with suppress(RuntimeError):  # two threads set it at the same moment
                self._lock.release()

    def wait(self, seconds: float) -> None:
        """Return when the event is set, at the latest after *seconds*."""
        self._lock.acquire(True, max(0.0, seconds))

    def clear(self) -> None:
        """Reset the event. Look for work only after this call: then no later event is missed."""
        self._is_set = False


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
    """Let the whole native thread sleep, also where greenlets are patched in."""
    _original("time", "sleep")(seconds)


def defer_log_lines(_owner: Any, write: Callable[..., None]) -> Callable[..., None]:
    """Wrap *write*, which writes a log line: a greenlet writes the lines of native threads.

    Handlers have locks of greenlets. Where a native thread waits for such a lock, or a greenlet
    waits for the thread, the wait may have no end.
    """
    package, own_ident = _patched_by() or "", original_ident()
    greenlets = import_module(package)
    # The greenlet alone keeps no process alive, in `gevent.wait()`.
    how = {"ref": False} if package == "gevent" else {}

    def write_or_defer(logger: logging.Logger, record: logging.LogRecord) -> None:
        if own_ident() in _THREAD_IDS:
            _LOG_LINES.append(partial(write, logger, record))
        else:
            write(logger, record)

    def write_always() -> None:
        while True:
            write_log_lines()
            greenlets.sleep(LOG_INTERVAL_SECONDS, **how)

    greenlets.spawn(write_always)
    return write_or_defer


def write_log_lines() -> None:
    """Write the deferred log lines of native threads, in the caller's thread."""
    while _LOG_LINES:
        line = _LOG_LINES.popleft()
        try:
            line()
        except Exception:
            traceback.print_exc()  # as logging does where a handler fails
