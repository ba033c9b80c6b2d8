"""Methods that pass their call on to an attribute of their object."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


def method_of(
    attribute: str, function: Callable[Concatenate[Any, P], T]
) -> Callable[Concatenate[Any, P], T]:
    """Return a method that calls *function* with an attribute of its object as first argument.

    The method has the signature and the docstring of the function.
    """

    @wraps(function)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return function(getattr(self, attribute), *args, **kwargs)

    return call


def delegate(
    attribute: str, method: Callable[Concatenate[Any, P], T]
) -> Callable[Concatenate[Any, P], T]:
    """Return a method that calls the method of the same name of an attribute.

    The class of the attribute may override *method*.
    """

    @wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        own: Callable[P, T] = getattr(getattr(self, attribute), method.__name__)
        return own(*args, **kwargs)

    return call
