"""Methods that pass their call on, and functions that name the argument that was meant."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from celery_delayq.utils.lazy import resolved
from celery_delayq.utils.text import did_you_mean

T = TypeVar("T")
P = ParamSpec("P")

#: Kinds of parameters that take an argument by its name, and by its place.
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def unknown_argument(name: str, value: Any, valid: Iterable[str]) -> TypeError:
    """Return the error for a keyword argument that a call does not take.

    Parameters
    ----------
    valid : Iterable[str]
        The keyword arguments that the call takes.
    """
    valid = [*valid]
    return TypeError(
        f"unknown argument {name}={value!r}{did_you_mean(name, valid) or ';'} {_valid(valid)}"
    )


def names_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function: the error for wrong arguments says which ones the function takes.

    Python's own error names a class that users do not know. The first argument of the function is
    the object, or the session.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except TypeError as exc:
            # If the function has no frame, the call did not fit.
            if exc.__traceback__ is None or exc.__traceback__.tb_next is not None:
                raise
            error = _wrong_call(function, len(args) - 1, kwargs) or exc
        raise error

    return call


def methods_name_arguments(kind: type[T]) -> type[T]:
    """Decorate a class: each public method, and ``__call__``, :func:`names_arguments`."""
    for name, value in [*vars(kind).items()]:
        if inspect.isfunction(value) and (name == "__call__" or not name.startswith("_")):
            setattr(kind, name, names_arguments(value))
    return kind


def _wrong_call(
    function: Callable[..., Any], number: int, kwargs: Mapping[str, Any]
) -> TypeError | None:
    """Return the error for a call with *number* positional arguments; None if the call fits."""
    parameters = [*inspect.signature(function).parameters.values()][1:]
    kinds = {each.kind for each in parameters}
    named = [each.name for each in parameters if each.kind in _NAMED]
    positional = [each for each in parameters if each.kind in _POSITIONAL]
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        for name in kwargs:
            if name not in named:
                return unknown_argument(name, kwargs[name], named)
    if number > len(positional) and inspect.Parameter.VAR_POSITIONAL not in kinds:
        names = [each.name for each in positional]
        others = ", ".join(name for name in named if name not in names)
        return TypeError(
            f"{number} argument{'s' * (number > 1)} without a name; expected "
            f"{', '.join(names) or 'none'}{', and by name: ' * bool(others)}{others}"
        )
    given = {each.name for each in positional[:number]}
    for each in parameters:
        if each.name in given and each.name in kwargs and each.kind in _NAMED:
            return TypeError(f"argument {each.name} is given twice; {_valid(named)}")
        is_needed = each.default is each.empty and each.kind in {*_NAMED, *_POSITIONAL}
        if is_needed and each.name not in given and each.name not in kwargs:
            return TypeError(f"argument {each.name} is missing; {_valid(named)}")
    return None


def _valid(names: Iterable[str]) -> str:
    return f"valid are: {', '.join(names) or 'none'}"


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
