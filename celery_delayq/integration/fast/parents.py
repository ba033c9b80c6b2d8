"""Finds the parent of a task in less time where no task runs.

Celery looks twice for the parent of each task that it sends. Where no task runs, each look raises
two exceptions. Row ``fast-parents`` of the benchmark.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery._state import _task_stack
from celery.utils.threads import Local

from celery_delayq.integration.fast.group import Group
from celery_delayq.integration.replace import Replace


def finding_parent(_owner: Any, stock: Callable[[], Any]) -> Callable[[], Any]:
    """Wrap the look for the running task.

    Celery has a stack of tasks for each thread, or greenlet, in which a task runs.
    """
    stacks: Any = vars(_task_stack)["_local"]

    def find() -> Any:
        return stock() if stacks.__ident_func__() in stacks.__storage__ else None

    return find


def has_local_stack(_owner: Any) -> bool:
    """Return whether Celery keeps the running tasks itself, not by ``threading.local``."""
    return isinstance(vars(_task_stack).get("_local"), Local)


GROUP = Group(
    name="parents",
    process=(
        Replace(
            target="celery.app.base:get_current_worker_task",
            by=finding_parent,
            condition="without USE_FAST_LOCALS in the environment",
            when=has_local_stack,
            why="Celery looks twice for the parent of each task, by two exceptions",
        ),
    ),
    upstream="celery: a method `Local.get(name)` that reads `__storage__.get(ident)` and raises "
    "nothing, for `_LocalStack.stack` and `_LocalStack.top`.",
)
