"""Methods that pass their call on to an attribute of their object."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from celery_delayq.utils.lazy import resolved

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


class _Delegated:
    """A descriptor for the method of the same name of an attribute.

    It returns the method itself, so a call has no frame in between.

    Read from the class, it is a function with the signature and the docstring of *method*.
    """

    def __init__(self, attribute: str, method: Callable[..., Any]) -> None:
        self._attribute = attribute
        self._name = method.__name__
        self._method = method

    @cached_property
    def __func__(self) -> Callable[..., Any]:
        @wraps(resolved(self._method))
        def call(instance: Any, /, *args: Any, **kwargs: Any) -> Any:
            return self.__get__(instance)(*args, **kwargs)

        return call

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self.__func__
        return getattr(getattr(instance, self._attribute), self._name)


def delegate(
    attribute: str, method: Callable[Concatenate[Any, P], T]
) -> Callable[Concatenate[Any, P], T]:
    """Return a method that calls the method of the same name of an attribute.

    *method* may be a lazy name. The class of the attribute may override it.
    """
    return cast("Callable[Concatenate[Any, P], T]", _Delegated(attribute, method))
