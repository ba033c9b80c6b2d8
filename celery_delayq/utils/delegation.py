"""Methods that pass their call on, and functions that name the argument that was meant."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import cached_property, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from celery_delayq.utils.lazy import resolved
from celery_delayq.utils.text import did_you_mean

T = TypeVar("T")
P = ParamSpec("P")


def unknown_argument(name: str, value: Any, valid: Iterable[str]) -> TypeError:
    """Return the error for a keyword argument that a call does not take.

    Parameters
    ----------
    valid : Iterable[str]
        The keyword arguments that the call takes.
    """
    valid = [*valid]
    return TypeError(
        f"unknown argument {name}={value!r}{did_you_mean(name, valid) or ';'} valid are: "
        f"{', '.join(valid)}"
    )


def names_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function: its error for an unknown keyword argument names the one that is meant.

    Python before 3.13 names only the unknown one.
    """
    parameters = [*inspect.signature(function).parameters.values()]
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return function
    # The first one is the object, or the session.
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = dict.fromkeys(each.name for each in parameters[1:] if each.kind in kinds)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if not kwargs.keys() <= names.keys():
            name = next(name for name in kwargs if name not in names)
            raise unknown_argument(name, kwargs[name], names)
        return function(*args, **kwargs)

    return call


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
