"""Methods that hand their call on to an attribute of their object."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


def method_of(
    attribute: str, function: Callable[Concatenate[Any, P], T]
) -> Callable[Concatenate[Any, P], T]:
    """Return a method that calls a function with an attribute of its object first.

    It has the signature and the docstring of the function.
    """

    @wraps(function)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return function(getattr(self, attribute), *args, **kwargs)

    return call


def delegate(
    attribute: str, method: Callable[Concatenate[Any, P], T]
) -> Callable[Concatenate[Any, P], T]:
    """Return a method that calls the one of the same name of an attribute of its object.

    It has the signature and the docstring of *method*; the attribute's class may have its own.
    """

    @wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        own: Callable[P, T] = getattr(getattr(self, attribute), method.__name__)
        return own(*args, **kwargs)

    return call
