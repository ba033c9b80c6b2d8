"""A prefork worker gives up a task that kills each child that reads the task."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

from billiard.pool import EX_OK, EX_RECYCLE

#: Children that may die before they begin a task. One more death counts as a crash of the task.
MAX_DEAD_CHILDREN = 2
#: Exit codes of children that ended as planned.
CLEAN_EXIT_CODES = (EX_OK, EX_RECYCLE)


def count_lost_children(_owner: type, on_partial_read: Callable[..., None]) -> Callable[..., None]:
    """Have a pool give up a task that kills each child that reads the task.

    A child dies before it begins a task whose arguments it cannot unpickle. Celery then gives the
    task to the next child, without end.

    A child may also begin a task and die while the pool handles the death of another child.
    billiard (``_join_exited_workers``) has not read its report then, and would run the task again.
    billiard reports the same dead child again at each further death, until the task is given to
    another child.
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
            job._ack(None, monotonic(), child.pid, None)  # without it another child gets the task
        on_partial_read(pool, job, child)
        if len(lost) > MAX_DEAD_CHILDREN:
            pool.mark_as_worker_lost(job, child.exitcode)

    return on_child_lost
