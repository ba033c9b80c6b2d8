"""Find the parent of a task faster where no task runs.

Celery looks up the parent of each task twice while sending. Where no task runs, each lookup raises
two exceptions. Benchmark row: ``fast-parents``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery._state import _task_stack
from celery.utils.threads import Local

from celery_delayq.integration.fast.group import Group
from celery_delayq.integration.replace import Replace


def find_parent(_owner: Any, stock: Callable[[], Any]) -> Callable[[], Any]:
    """Wrap the lookup of the running task.

    Celery has one stack of tasks for each thread or greenlet that runs tasks.
    """
    stacks: Any = vars(_task_stack)["_local"]

    def find() -> Any:
        return stock() if stacks.__ident_func__() in stacks.__storage__ else None

    return find


def has_local_stack(_owner: Any) -> bool:
    """Return whether Celery stores running tasks in its own ``Local``, not ``threading.local``."""
    return isinstance(vars(_task_stack).get("_local"), Local)


GROUP = Group(
    name="parents",
    process=(
        Replace(
            target="celery.app.base:get_current_worker_task",
            by=find_parent,
            condition="without USE_FAST_LOCALS in the environment",
            when=has_local_stack,
            without="Celery looks twice for the parent of each task, and raises two exceptions "
            "each time.",
        ),
    ),
    upstream="celery: a method `Local.get(name)` that reads `__storage__.get(ident)` and raises "
    "nothing, for `_LocalStack.stack` and `_LocalStack.top`.",
)
