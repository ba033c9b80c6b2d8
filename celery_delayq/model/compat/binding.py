"""Whether a task of this code takes given arguments. Calls no task. No I/O.

Celery calls ``task(*args, **kwargs)``, which calls ``task.run``. Each decorator that keeps
``__wrapped__`` adds a layer around the function. The outermost layer must take the arguments. Inner
layers are checked as long as the layer around them takes any arguments and may pass them on.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import lru_cache, partial
from types import CellType, FunctionType
from typing import Any, Literal, NamedTuple

from celery import Task
from celery.app import base
from celery.backends.base import Backend
from celery.utils.functional import arity_greater
from celery.utils.saferepr import saferepr

from celery_delayq.errors import ConfigError

#: Stands for a value that is known only when the task is called, such as the result of another.
UNKNOWN = object()

#: Numbers and names of arguments whose outcome is remembered, for each task.
MAX_SHAPES = 1000

Level = Literal["binds", "fails", "unknown"]


class Verdict(Enum):
    """What would become of a call."""

    BINDS = "binds"
    NOT_REGISTERED = "the task is not registered"
    ARGUMENTS = "the task does not take the arguments"
    MODEL = "a Pydantic model refuses an argument"
    CONTENT_TYPE = "the app does not accept the content type"
    UNREADABLE = "the message cannot be read"
    NOT_DECODED = "the content was not decoded"
    HIDDEN_SIGNATURE = "a decorator hides what the task takes"
    OTHER_PROTOCOL = "no message of Celery's protocol 2"

    @property
    def level(self) -> Level:
        """Whether the call binds, would fail, or whether nobody can tell."""
        if self is Verdict.BINDS:
            return "binds"
        return "unknown" if self in _UNKNOWN_VERDICTS else "fails"


_UNKNOWN_VERDICTS = (Verdict.NOT_DECODED, Verdict.HIDDEN_SIGNATURE, Verdict.OTHER_PROTOCOL)

#: Verdicts on arguments with which a task would fail.
REFUSED_VERDICTS = (Verdict.ARGUMENTS, Verdict.MODEL)


class Bound(NamedTuple):
    """The verdict on a call, and its details for people."""

    verdict: Verdict
    detail: str = ""


_BINDS = Bound(Verdict.BINDS)


class _Layer(NamedTuple):
    """The signature of a function, and the arguments that Celery itself adds first."""

    signature: inspect.Signature
    added: tuple[Any, ...]

    @property
    def may_pass_on(self) -> bool:
        """Whether the function takes any arguments, and so may pass them on to another one."""
        kinds = {each.kind for each in self.signature.parameters.values()}
        return not kinds.isdisjoint(
            (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        )


class TaskBinding:
    """Binds arguments to one task.

    Parameters
    ----------
    task : Task
        A registered task.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        # Celery's autoretry_for wraps ``run``, and keeps the function that was there.
        run = getattr(task, "_orig_run", None) or task.run
        self._added = (task,) if inspect.ismethod(run) else ()
        function = getattr(run, "__func__", run)
        functions = [function, *_wrapped_in(function)]
        models = next((i for i, each in enumerate(functions) if _has_models(each)), None)
        self._validate: Callable[..., Any] | None = None
        if models is not None:
            # Celery binds the arguments to the signature of the innermost function.
            self._validate = _validation_alone(functions[models])
            functions = functions[: models + 1]
        self._hides = models is None and _may_hide_another(functions[-1])
        try:
            self._layers = [*self._layers_of(functions)]
        except (TypeError, ValueError):  # functions that are not written in Python may have none
            self._layers, self._hides = [], True
        self._by_shape: dict[Any, Bound] = {}

    def _layers_of(self, functions: Sequence[Any]) -> Iterator[_Layer]:
        call = self._task.__class__.__call__  # not type(): it may be a proxy
        if call is not Task.__call__:
            yield _Layer(inspect.signature(call, follow_wrapped=False), (self._task,))
        for function in functions:
            follows = _has_models(function)
            yield _Layer(inspect.signature(function, follow_wrapped=follows), self._added)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Bound:
        """Return whether the task takes the arguments. Some of them may be :data:`UNKNOWN`."""
        shape = len(args), *kwargs
        found = self._by_shape.get(shape)
        if found is None:
            if len(self._by_shape) >= MAX_SHAPES:
                self._by_shape.clear()
            found = self._by_shape[shape] = self._bind(args, kwargs)
        if found is _BINDS and self._validate is not None:
            return _validated(self._validate, (*self._added, *args), kwargs)
        return found

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Bound:
        for depth, layer in enumerate(self._layers):
            given = (*layer.added, *args)
            try:
                layer.signature.bind(*given, **kwargs)
            except TypeError as exc:
                if depth and _only_misses(layer, given, kwargs):
                    # The layers around the function may add arguments.
                    return Bound(Verdict.HIDDEN_SIGNATURE, str(exc))
                return Bound(Verdict.ARGUMENTS, str(exc))
            if not layer.may_pass_on:
                return _BINDS
        return Bound(Verdict.HIDDEN_SIGNATURE) if self._hides else _BINDS

    def errback_arguments(self, signature: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the arguments that Celery adds when it calls the task as an errback.

        These are request, exception and traceback, or the id of the failed task: see
        ``celery.backends.base.Backend._call_task_errbacks``.
        """
        header = getattr(self._task, "__header__", None)
        if header is None or isinstance(header, partial):
            return (UNKNOWN,)
        args, kwargs = signature.get("args") or (), signature.get("kwargs") or {}
        counts_own = hasattr(Backend, "_errback_arity_greater")  # Celery 5.7 and later
        if counts_own and not signature.get("immutable") and (args or kwargs):
            header = partial(header, *args, **kwargs)
        try:
            takes_more = arity_greater(header, 1)
        except (TypeError, ValueError):
            takes_more = arity_greater(self._task.__header__, 1)
        return (UNKNOWN,) * (3 if takes_more else 1)


@lru_cache(maxsize=1000)
def binding_of(task: Task) -> TaskBinding:
    """Return the binding of a task. It is made once, since reading signatures takes long."""
    return TaskBinding(task)


def has_own_apply_async(task: Task) -> bool:
    """Return whether a task has not Celery's ``apply_async``: its own may add arguments."""
    return getattr(task.apply_async, "__func__", None) is not Task.apply_async


def check_arguments(
    name: str,
    task: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    hint_of: Callable[[str], str] = lambda _detail: "",
) -> None:
    """Refuse arguments that a task does not take, as ``apply_async`` does.

    Parameters
    ----------
    task : Any
        The task; None if this app does not know the task: then any arguments are accepted.
    hint_of : Callable[[str], str]
        Returns the end of the error for a detail of the verdict.

    Raises
    ------
    ConfigError
        The task does not take the arguments, or a model of Pydantic refuses one.
    """
    if task is None or not task.typing:
        return
    bound = binding_of(task).bind(args, kwargs)
    if bound.verdict in REFUSED_VERDICTS:
        raise ConfigError(
            f"{name}: args={saferepr(tuple(args))}, kwargs={saferepr(dict(kwargs))}: "
            f"{bound.verdict.value}: {bound.detail}{hint_of(bound.detail)}"
        )


def _wrapped_in(function: Any) -> Iterator[Any]:
    """Yield the functions inside a decorated function, outermost first."""
    seen = {id(function)}
    while (function := getattr(function, "__wrapped__", None)) and id(function) not in seen:
        seen.add(id(function))
        yield function


def _only_misses(layer: _Layer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a call lacks arguments, and has none that the function does not take."""
    try:
        layer.signature.bind_partial(*args, **kwargs)
    except TypeError:
        return False
    return True


def _may_hide_another(function: Any) -> bool:
    """Return whether a function that takes any arguments may pass them to a function inside it."""
    if not isinstance(function, FunctionType):
        return True
    for cell in function.__closure__ or ():
        try:
            found = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        if callable(found) and not isinstance(found, type):
            return True
    return False


# -- Pydantic models -------------------------------------------------------------------------------

#: Variables of the function in which Celery validates the arguments of a task.
_MODEL_VARIABLES = {"task_fun", "task_signature"}


class _KnownArguments(inspect.Signature):
    """A signature that leaves out arguments that are not known."""

    def bind(self, /, *args: Any, **kwargs: Any) -> inspect.BoundArguments:
        bound = super().bind(*args, **kwargs)
        for name in [name for name, value in bound.arguments.items() if value is UNKNOWN]:
            del bound.arguments[name]
        return bound


def _has_models(function: Any) -> bool:
    """Return whether a function is the one in which Celery validates models."""
    return (
        isinstance(function, FunctionType)
        and function.__globals__ is vars(base)
        and set(function.__code__.co_freevars) >= _MODEL_VARIABLES
    )


def _validation_alone(function: FunctionType) -> Callable[..., Any]:
    """Return Celery's function that validates models, without the call of the task in it."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    signature = inspect.signature(function)
    known = _KnownArguments([*signature.parameters.values()])
    cells["task_fun"] = CellType(lambda *_, **__: None)
    cells["task_signature"] = CellType(known)
    return FunctionType(function.__code__, function.__globals__, closure=tuple(cells.values()))


def _validated(
    validate: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Bound:
    try:
        validate(*args, **kwargs)
    except Exception as exc:  # validators are the app's code
        return Bound(Verdict.MODEL, _refusal(exc))
    return _BINDS


def _refusal(exc: Exception) -> str:
    """Return where and why a model refuses its value, without the value."""
    try:
        error = exc.errors()[0]  # type: ignore[attr-defined]
        where = ".".join("*" if isinstance(each, int) else str(each) for each in error["loc"])
        return f"{exc.title} {where}: {error['type']}"  # type: ignore[attr-defined]
    except (AttributeError, LookupError, TypeError):
        return type(exc).__name__
