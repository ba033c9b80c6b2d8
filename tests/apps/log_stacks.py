"""Log stacks where Celery does not: of greenlets on SIGUSR1, of prefork's children on SIGUSR2.

So a worker that does not end says where it waits. SIGUSR1 is a child's soft time limit.
"""

from __future__ import annotations

import faulthandler
import gc
import signal
import sys
import traceback
from types import FrameType

from celery.signals import worker_process_init, worker_ready


@worker_ready.connect
def log_on_signal(sender: object = None, **_: object) -> None:
    """Install the handler in a worker with a green pool."""
    if getattr(getattr(sender, "pool", None), "is_green", False):
        signal.signal(signal.SIGUSR1, _log_greenlets)
        # Also where the main thread comes to no Python code.
        faulthandler.register(signal.SIGUSR1, chain=True)


@worker_process_init.connect
def log_child_on_signal(**_: object) -> None:
    """Install the handler in a child of prefork."""
    faulthandler.register(signal.SIGUSR2, file=2)  # Celery replaces `sys.stderr`


def _log_greenlets(_signal: int, _frame: FrameType | None) -> None:
    for each in gc.get_objects():
        if isinstance(each, sys.modules["greenlet"].greenlet) and each.gr_frame is not None:
            stack = "".join(traceback.format_stack(each.gr_frame))
            print(f"-- {each!r}\n{stack}", file=sys.stderr)
    print("LOCAL VARIABLES are not logged", file=sys.stderr)
