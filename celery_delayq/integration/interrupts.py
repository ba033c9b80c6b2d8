"""Handlers of signals that wait while the main thread does what they must not interrupt.

Python calls a handler in the main thread, between any two steps of it. Celery's cold shutdown runs
in such a handler and calls RabbitMQ there. In the middle of another call it would wait for ever for
a lock that the interrupted call holds (py-amqp 5.4.2), or mix up the bytes of both calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial, update_wrapper
from typing import Any

Handler = Callable[..., Any]


class _Uninterrupted:
    """A ``with`` block that the handlers of :func:`postponed` do not interrupt.

    Blocks may be nested. In other threads than the main one a block has no effect: handlers do not
    run there.
    """

    def __init__(self) -> None:
        self.depth = 0
        self.waiting: Callable[[], Any] | None = None

    def __enter__(self) -> None:
        if _is_main_thread():
            self.depth += 1

    def __exit__(self, *_: object) -> None:
        if _is_main_thread():
            self.depth -= 1
            if self.depth == 0 and self.waiting is not None:
                waiting, self.waiting = self.waiting, None
                waiting()


def _is_main_thread() -> bool:
    return threading.get_ident() == threading.main_thread().ident


uninterrupted = _Uninterrupted()


def postponed(handler: Handler, at_second: Callable[[], Any]) -> Handler:
    """Wrap the handler of a signal: in an :data:`uninterrupted` block it runs after the block.

    Parameters
    ----------
    handler : Callable
        Called with the arguments of a handler.
    at_second : Callable
        Called at a further signal in the same block, whose call may hang. It raises an error that
        ends the process.
    """

    def run(*args: Any) -> None:
        if not uninterrupted.depth:
            handler(*args)
        elif uninterrupted.waiting is None:
            uninterrupted.waiting = partial(handler, *args)
        else:
            uninterrupted.waiting = None
            at_second()

    return update_wrapper(run, handler)
