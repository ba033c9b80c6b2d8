"""One change to Celery, kombu or logging: made once, and can be undone.

A target is ``module:Class.attribute``, or a path from an object that exists when the change is
made: ``app.send_task``, ``worker.stop``, ``pool.flush``, ``task.run``. An item of a mapping is
``module:Class.mapping[key]``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache, reduce, update_wrapper
from importlib import import_module
from types import MethodType
from typing import Any

from celery import Celery, signals
from kombu.utils.imports import symbol_by_name

#: Celery's own names of the classes that are replaced.
_STOCK_NAMES = (Celery.amqp_cls, Celery.control_cls)

#: Attribute of a replacement: the original, and whether the owner itself had the original.
_REPLACED = "_delayq_replaced"


def always(_owner: Any) -> bool:
    """Return True. The condition of a change without a condition."""
    return True


class Promise(Enum):
    """A promise of the package, as a sentence, that needs changes to Celery."""

    URL = "The URL of the broker alone chooses the transport."
    DUE_TIME = "A task starts at its ETA by the clock of Redis, never before; the broker keeps it."
    AT_LEAST_ONCE = "The message of each task is settled once, after its end, and none is lost."
    NO_SECOND_RUN = "A task does not run twice while its worker lives."
    LIMITED_DELIVERIES = "A message that ends its worker or its child is not delivered without end."
    LIMITED_RETRIES = "Retries keep to intervals, limits and budgets of their policy."
    DEAD_LETTERS = "A task that has failed for good is a dead letter."
    RESULT_BACKEND_AWAY = "The result backend does not decide what becomes of a message."
    UNIQUE_KEYS = "Of the tasks with one unique key, one waits, and its callers have its result."
    RENAMED_TASKS = "A message with a former name of a task runs as the task."
    REVOKES = "A revoked task runs in no worker, also in none that starts later."
    PERIODIC = "A tick of a periodic entry is run once, by whichever worker fires it."
    CONTEXT = "A task and the tasks that it sends have the context of their sender."
    OUTAGES = "A worker outlives a broker that is away, full or busy."
    NO_HANGING = "A worker does not wait for what never comes."
    PROMPT = "An acknowledgement is sent as soon as the event loop has nothing else to do."
    ASYNCIO = "A client for asyncio does not block its event loop."
    LIVENESS = "The file of liveness_file is touched while the worker works, and only then."
    REMOTE_CONTROL = "Remote control and Flower show the schedule, and errors of this package."
    SECRETS = "No answer shows a password."
    WARNINGS = "A worker says when it starts what is on, and what breaks a promise."
    OTHER_HOOKS = (
        "Other code that changes Celery, or that Celery runs, works as without the package."
    )
    OTHER_CHANGES = "The other changes of the table are made at their moment."


@dataclass(frozen=True, kw_only=True)
class Change:
    """A row of the table in :mod:`~celery_delayq.integration.install`.

    Parameters
    ----------
    target : str
        The function, class or item to change.
    without : str
        What happens without this change, as sentences.
    promise : Promise | None
        The promise that needs the change. None for a change that serves speed alone; such a
        change has a group in :mod:`~celery_delayq.integration.fast`.
    upstream : str
        A change to Celery, kombu or billiard that would replace this change, in Markdown.
    condition : str
        Where the change is made, in words. *when* and *versions* implement the condition.
    versions : str
        Releases that need the change, such as ``kombu<5.6``.
    is_needed : bool
        Whether the installed release needs the change.
    when : Callable[[Any], object]
        Called with the owner of the target. The change is made if the result is true.
    """

    target: str
    without: str
    promise: Promise | None = None
    upstream: str = ""
    condition: str = ""
    versions: str = ""
    is_needed: bool = True
    when: Callable[[Any], object] = always

    def make(self, **objects: Any) -> None:
        """Make the change, unless it is already made, not needed, or its owner does not exist."""
        owner, name = self._resolve(objects)
        if owner is not None and self.is_needed and self.when(owner):
            self._make(owner, name)

    def undo(self, **objects: Any) -> None:
        """Undo the change, unless it is not made, or other code has wrapped it."""
        owner, name = self._resolve(objects)
        if owner is not None:
            self._undo(owner, name)

    def _resolve(self, objects: Mapping[str, Any]) -> tuple[Any, str]:
        module, is_attribute, names = self.target.partition(":")
        owner: Any
        if is_attribute:
            owner = import_module(module)
        else:
            first, _, names = module.partition(".")
            owner = objects.get(first)
        *parents, name = re.split(r"[.\[]", names.removesuffix("]"))
        return reduce(_get, parents, owner), name

    def _make(self, owner: Any, name: str) -> None:
        raise NotImplementedError

    def _undo(self, owner: Any, name: str) -> None:
        raise NotImplementedError


def _get(owner: Any, name: str) -> Any:
    return owner[name] if isinstance(owner, dict) else getattr(owner, name, None)


def _set(owner: Any, name: str, value: Any) -> None:
    if isinstance(owner, dict):
        owner[name] = value
    else:
        setattr(owner, name, value)


def _replaced(value: Any) -> Any:
    """Return the original of a replacement. Return None for other objects."""
    return getattr(value, _REPLACED, None)


@dataclass(frozen=True, kw_only=True)
class Replace(Change):
    """Replaces a function, or a class given as a class or as a dotted string.

    Parameters
    ----------
    by : Callable[[Any, Any], Any]
        Called with the owner and the original; returns the replacement. A replacing function gets
        the names and signature of the original, so it needs no ``functools.wraps``.
    """

    by: Callable[[Any, Any], Any]

    def _make(self, owner: Any, name: str) -> None:
        before = _get(owner, name)
        if before is None or _replaced(before) is not None:
            return
        is_own = name in (owner if isinstance(owner, dict) else vars(owner))
        new = self.by(owner, before)
        if inspect.isfunction(before) or inspect.ismethod(before):
            new = _alike(before, new)
        setattr(getattr(new, "__func__", new), _REPLACED, (before, is_own))
        _set(owner, name, new)

    def _undo(self, owner: Any, name: str) -> None:
        replaced = _replaced(_get(owner, name))
        if replaced is None:
            return
        before, is_own = replaced
        if is_own:
            _set(owner, name, before)
        else:
            delattr(owner, name)


@dataclass(frozen=True, kw_only=True)
class Connect(Change):
    """Connects a receiver to a signal: ``signals.<name>`` or a signal of the app."""

    receiver: Callable[..., Any]

    def _make(self, owner: Any, name: str) -> None:
        _get(owner, name).connect(self.receiver, dispatch_uid=self._uid)

    def _undo(self, owner: Any, name: str) -> None:
        _get(owner, name).disconnect(dispatch_uid=self._uid)

    @property
    def _uid(self) -> str:
        return f"{self.receiver.__module__}.{self.receiver.__qualname__}"

    def _resolve(self, objects: Mapping[str, Any]) -> tuple[Any, str]:
        return super()._resolve({"signals": signals, **objects})


@dataclass(frozen=True, kw_only=True)
class Register(Change):
    """Adds several keys with the same value to a mapping."""

    keys: tuple[str, ...]
    value: Any

    def _make(self, owner: Any, name: str) -> None:
        _get(owner, name).update(dict.fromkeys(self.keys, self.value))

    def _undo(self, owner: Any, name: str) -> None:
        for key in self.keys:
            _get(owner, name).pop(key, None)


@dataclass(frozen=True, kw_only=True)
class Insert(Change):
    """Puts items before those of a list."""

    items: tuple[Any, ...]

    def _make(self, owner: Any, name: str) -> None:
        found = _get(owner, name)
        found[:0] = [item for item in self.items if item not in found]

    def _undo(self, owner: Any, name: str) -> None:
        found = _get(owner, name)
        found[:] = [item for item in found if item not in self.items]


def _alike(before: Any, new: Callable[..., Any]) -> Any:
    """Return a replacement that ``inspect`` shows like the original function or method.

    Names, docstring, signature and annotations are those of the original. A method stays a method.
    A coroutine function must be replaced by a coroutine function.
    """
    stock: Any = getattr(before, "__func__", before)
    if inspect.ismethod(before) and not inspect.ismethod(new):
        new = _taking_self(new)
    function: Any = getattr(new, "__func__", new)
    update_wrapper(function, stock)
    if not hasattr(stock, "__wrapped__"):  # `inspect` follows `__wrapped__` to the signature
        function.__signature__ = _signature(stock)
    if inspect.ismethod(before) and not inspect.ismethod(new):
        return MethodType(function, before.__self__)
    return new


#: Cached, because tasks share most of their methods.
_signature = lru_cache(maxsize=64)(inspect.signature)


def _taking_self(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(_self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


class DottedName(str):
    """The dotted name of a class that Celery imports when it needs the class."""


def mixed_into(ours: str, _app: Any, theirs: Any) -> Any:
    """Return the replacement of a class of Celery, or of a subclass chosen by the app.

    If possible the result is a dotted name: the class is imported when the app needs it, and the
    app is pickled for spawned children.

    Parameters
    ----------
    ours : str
        The dotted name of a class with two bases: our mixin and Celery's own class.
    """
    if theirs in _STOCK_NAMES:
        return DottedName(ours)
    own, base = symbol_by_name(ours), symbol_by_name(theirs)
    mixin, stock = own.__bases__
    if base is stock:
        return DottedName(ours)
    return type(own.__name__, (mixin, base), {})


def make(changes: Iterable[Change], **objects: Any) -> None:
    """Make changes in the given order. A second call changes nothing."""
    for change in changes:
        change.make(**objects)


def undo(changes: Iterable[Change], **objects: Any) -> None:
    """Undo changes in reverse order."""
    for change in [*changes][::-1]:
        change.undo(**objects)
