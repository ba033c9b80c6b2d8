"""To the children of a prefork worker: a task that ends each child that reads it is given up."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

from billiard.pool import EX_OK, EX_RECYCLE

#: Children that may die before they begin a task: one more, and it counts as a crash.
MAX_DEAD_CHILDREN = 2
#: Exit codes of children that have read all that they were to read.
CLEAN_EXIT_CODES = (EX_OK, EX_RECYCLE)


def counting_children(_owner: type, on_partial_read: Callable[..., None]) -> Callable[..., None]:
    """Have a pool give a task up that ends each child that reads it.

    A child dies before it begins a task whose arguments it cannot unpickle. Celery gives the task
    to the next child, without end.

    A child that dies while the pool looks at another one may have begun its task: billiard
    (``_join_exited_workers``) has not read what it reported, and would run the task once more.
    It names the same child again whenever another one has died, until the task is given on.
    """

    def on_child_lost(pool: Any, job: Any, child: Any) -> None:
        if not job._accepted:
            pool.process_flush_queues(child)
        is_wanted = child.exitcode in CLEAN_EXIT_CODES or getattr(
            child, "_controlled_termination", False
        )
        if job._accepted or is_wanted:
            on_partial_read(pool, job, child)
            return
        lost: set[int] = vars(job).setdefault("delayq_lost", set())
        lost.add(child.pid)
        if len(lost) > MAX_DEAD_CHILDREN:
            job._ack(None, monotonic(), child.pid, None)  # or it is given to another one
        on_partial_read(pool, job, child)
        if len(lost) > MAX_DEAD_CHILDREN:
            pool.mark_as_worker_lost(job, child.exitcode)

    return on_child_lost
