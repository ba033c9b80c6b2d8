"""Functions that tasks have as options. No I/O."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def option_of(task: Any, name: str) -> Any:
    """Return an option of a task; None without it.

    A function of the decorator or of the class is returned as it is, unless it takes the task: see
    :func:`takes_task`. Then it is a method of the task.
    """
    value = getattr(task, name, None)
    if value is None or getattr(value, "__self__", None) is not task:
        return value
    function = getattr(value, "__func__", value)
    return value if takes_task(task, function) else function


def takes_task(task: Any, function: Callable[..., Any]) -> bool:
    """Return whether a function of a task's class gets the task as its first argument.

    It does if it was defined as a method of the class, and if its first parameter is named
    ``self``, or as the first parameter of the task's function with ``bind=True``.
    """
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None)
    if code is None:
        return True
    if not code.co_argcount:
        return False
    owner, _, name = function.__qualname__.rpartition(".")
    is_method = name != "<lambda>" and any(
        owner == each.__qualname__ for each in type(task).__mro__
    )
    return is_method or code.co_varnames[0] in ("self", _task_parameter(task))


def _task_parameter(task: Any) -> str | None:
    """Return the name under which the function of a bound task gets the task; None if unbound."""
    # Celery's autoretry_for wraps ``run``, and keeps the function that was there.
    run: Any = getattr(task, "_orig_run", None) or getattr(task, "run", None)
    if getattr(run, "__self__", None) is not task:
        return None
    code = getattr(inspect.unwrap(run), "__code__", None)
    return code.co_varnames[0] if code is not None and code.co_argcount else None
