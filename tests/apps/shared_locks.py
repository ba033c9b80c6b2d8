"""Write a line to stderr for each lock of greenlets that a native thread and a greenlet both take.

A wait for such a lock may have no end. Python has such a lock for each module that is imported, so
there is a line for each import by a native thread too.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import traceback
from importlib import import_module
from importlib.abc import MetaPathFinder
from typing import Any
from weakref import WeakKeyDictionary

from celery_delayq.utils import native_threads
from tests.support import TIMEOUT

#: How the lines begin.
FOUND = "lock of greenlets in a native thread: "
#: By package: the class of the locks that it patches in.
LOCKS = {"gevent": "gevent.thread:LockType", "eventlet": "eventlet.semaphore:Semaphore"}


def watch(package: str) -> None:
    """Watch all locks of this process. Show its stacks before a test gives up."""
    faulthandler.dump_traceback_later(0.8 * TIMEOUT, repeat=True)
    module, _, name = LOCKS[package].partition(":")
    lock_class: Any = getattr(import_module(module), name)
    acquire = lock_class.acquire
    #: By lock: whether native threads took it.
    users: WeakKeyDictionary[Any, set[bool]] = WeakKeyDictionary()

    def acquire_and_look(lock: Any, *args: Any, **kwargs: Any) -> Any:
        known = users.setdefault(lock, set())
        is_native = native_threads.is_native()
        if is_native not in known:
            known.add(is_native)
            if len(known) > 1:
                _report(traceback.extract_stack(limit=12)[:-1])
        return acquire(lock, *args, **kwargs)

    lock_class.acquire = acquire_and_look
    sys.meta_path.insert(0, ImportsOfNativeThreads())


class ImportsOfNativeThreads(MetaPathFinder):
    """Finds no module, but sees who imports one."""

    def find_spec(self, *_: Any) -> None:
        """Report an import by a native thread."""
        if native_threads.is_native():
            _report(traceback.extract_stack(limit=30)[:-1])


def _report(frames: list[traceback.FrameSummary]) -> None:
    if all(each.name != "__del__" for each in frames):  # nobody else has the lock any more
        places = " < ".join(f"{each.filename}:{each.lineno}" for each in reversed(frames))
        os.write(2, f"{FOUND}{places}\n".encode())
