"""Cold shutdowns that wait until a call of the broker in the main thread has ended.

Python calls the handler of a signal in the main thread, between any two of its steps. Celery's cold
shutdown runs in such a handler and calls RabbitMQ there. In the middle of another call it would
wait for ever for a lock of that call (py-amqp 5.4.2), or mix up the bytes of both calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ContextDecorator
from functools import partial, update_wrapper
from typing import Any

from celery.exceptions import WorkerTerminate
from celery.platforms import EX_FAILURE

from celery_delayq.utils import native_threads

Handler = Callable[..., Any]

#: Seconds after which a guarded block counts as hanging. The next signal then ends the process.
HANGING_SECONDS = 1.0


class _ShutdownGuard(ContextDecorator):
    """Guards blocks of code, in which no handler of :func:`postpone_in_blocks` runs.

    The handler runs when the outermost block ends. Greenlets of the main thread count as the main
    thread: Python runs handlers in each of them. In other threads the guard has no effect.
    """

    def __init__(self) -> None:
        #: The id of the thread in which Python runs handlers, known once a handler was wrapped.
        self.thread_id: int | None = None
        #: Number of blocks that the main thread, with all its greenlets, has entered.
        self.depth = 0
        #: A handler with its arguments, to be called when the outermost block ends.
        self.postponed: Callable[[], Any] | None = None
        #: Time of the signal, in seconds of ``time.monotonic()``.
        self.signalled_at = 0.0
        self._own_id = native_threads.original_ident()

    def __enter__(self) -> None:
        if self._own_id() == self.thread_id:
            self.depth += 1

    def __exit__(self, *_: object) -> None:
        if self._own_id() == self.thread_id:
            self.depth -= 1
            if self.depth == 0 and self.postponed is not None:
                run, self.postponed = self.postponed, None
                run()

    def postpone(self, run: Callable[[], Any]) -> None:
        """Call *run* when the outermost block ends.

        If an earlier signal has waited for more than :data:`HANGING_SECONDS`, end the process as
        Celery's hard shutdown does.
        """
        if self.postponed is None:
            self.postponed, self.signalled_at = run, time.monotonic()
        elif time.monotonic() - self.signalled_at > HANGING_SECONDS:
            self.postponed = None
            raise WorkerTerminate(EX_FAILURE)


SHUTDOWN_GUARD = _ShutdownGuard()


def postpone_in_blocks(handler: Handler) -> Handler:
    """Wrap the handler of a signal: in a block of :data:`SHUTDOWN_GUARD` it runs after the block.

    Call this in the main thread, outside blocks.
    """
    SHUTDOWN_GUARD.thread_id = native_threads.ident()

    def run_or_postpone(*args: Any) -> None:
        # Between the end of a block and its postponed handler, the handler is still to run.
        if SHUTDOWN_GUARD.depth or SHUTDOWN_GUARD.postponed is not None:
            SHUTDOWN_GUARD.postpone(partial(handler, *args))
        else:
            handler(*args)

    return update_wrapper(run_or_postpone, handler)
