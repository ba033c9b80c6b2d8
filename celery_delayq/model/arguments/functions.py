"""Functions that tasks have as options. No I/O."""

from __future__ import annotations

import inspect
from typing import Any


def option_of(task: Any, name: str) -> Any:
    """Return an option of a task; None without it.

    A function of the decorator or of the class is returned as it is. It is a method only if its
    first parameter is named ``self``.
    """
    value = getattr(task, name, None)
    if value is None or getattr(value, "__self__", None) is not task:
        return value
    function = getattr(value, "__func__", value)
    code = getattr(inspect.unwrap(function), "__code__", None)
    is_method = code is None or (code.co_argcount and code.co_varnames[0] == "self")
    return value if is_method else function
