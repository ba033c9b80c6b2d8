"""Signal handlers that wait until a call of the broker in the main thread has ended.

Python calls a handler in the main thread, between any two of its steps. Celery's cold shutdown runs
in such a handler and calls RabbitMQ there. In the middle of another call, the shutdown would wait
for ever for a lock of that call (py-amqp 5.4.2), or mix up the bytes of both calls.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial, update_wrapper
from typing import Any

Handler = Callable[..., Any]

#: Seconds after which a block counts as hanging. The next signal then ends the process.
WAIT_SECONDS = 1.0


class _Postponing:
    """A block of code in which the handlers of :func:`postpone_in_blocks` do not run.

    The handler runs when the outermost block ends. In other threads than the main thread a block
    has no effect: Python runs no handler there.
    """

    def __init__(self) -> None:
        #: Number of nested blocks that the main thread has entered.
        self.depth = 0
        #: A handler with its arguments, to be called when the outermost block ends.
        self.postponed: Callable[[], Any] | None = None
        #: Time of the signal, in seconds of ``time.monotonic()``.
        self.signalled_at = 0.0

    def __enter__(self) -> None:
        if _is_main_thread():
            self.depth += 1

    def __exit__(self, *_: object) -> None:
        if _is_main_thread():
            self.depth -= 1
            if self.depth == 0 and self.postponed is not None:
                handle, self.postponed = self.postponed, None
                handle()

    def postpone(self, handle: Callable[[], Any], end_process: Callable[[], Any]) -> None:
        """Call *handle* when the block ends.

        If an earlier signal has waited for more than :data:`WAIT_SECONDS`, end the process.
        """
        if self.postponed is None:
            self.postponed, self.signalled_at = handle, time.monotonic()
        elif time.monotonic() - self.signalled_at > WAIT_SECONDS:
            self.postponed = None
            end_process()


def _is_main_thread() -> bool:
    return threading.get_ident() == threading.main_thread().ident


POSTPONING = _Postponing()


def postpone_in_blocks(handler: Handler, end_process: Callable[[], Any]) -> Handler:
    """Wrap the handler of a signal: in a block of :data:`POSTPONING` it runs after the block.

    Parameters
    ----------
    handler : Callable
        Called with the arguments of a handler.
    end_process : Callable
        Called at a further signal if the handler has waited for :data:`WAIT_SECONDS`. It raises
        an error that ends the process.
    """

    def handle(*args: Any) -> None:
        if POSTPONING.depth:
            POSTPONING.postpone(partial(handler, *args), end_process)
        else:
            handler(*args)

    return update_wrapper(handle, handler)
