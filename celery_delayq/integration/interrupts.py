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

#: Seconds for which a handler waits before a further signal ends the process: the call may hang.
WAIT_SECONDS = 1.0


class _Postponing:
    """Blocks of the main thread, after which the handlers of :func:`postpone_in_blocks` run.

    Blocks may be nested. In other threads a block has no effect: no handler runs there.
    """

    def __init__(self) -> None:
        #: The number of blocks that the main thread is in.
        self.depth = 0
        #: The call of a handler that waits for the end of the outermost block, and since when.
        self.handler_call: Callable[[], Any] | None = None
        self.since = 0.0

    def __enter__(self) -> None:
        if _is_main_thread():
            self.depth += 1

    def __exit__(self, *_: object) -> None:
        if _is_main_thread():
            self.depth -= 1
            if self.depth == 0 and self.handler_call is not None:
                handler_call, self.handler_call = self.handler_call, None
                handler_call()

    def postpone(self, handler_call: Callable[[], Any], end_process: Callable[[], Any]) -> None:
        """Keep the call until the block has ended; end the process if the block seems to hang."""
        if self.handler_call is None:
            self.handler_call, self.since = handler_call, time.monotonic()
        elif time.monotonic() - self.since > WAIT_SECONDS:
            self.handler_call = None
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
