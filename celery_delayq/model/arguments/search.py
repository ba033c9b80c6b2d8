"""Search for messages by the arguments with which their tasks were sent. No I/O."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from kombu.utils import json as kombu_json

from celery_delayq.errors import InvalidFilter, RecordError
from celery_delayq.model.envelope import Record
from celery_delayq.model.payload import READABLE_CONTENT_TYPES, body_of
from celery_delayq.utils import message_json

T = TypeVar("T")


class TypedValue(str):
    """The value of an argument as people type it: ``42`` stands for 42 and for ``"42"``."""

    __slots__ = ()


def checked_arguments(given: Any) -> dict[str, Any]:
    """Return wanted arguments with the values that a message would have.

    Raises
    ------
    InvalidFilter
        These are no arguments by name, or a value has no form in JSON.
    """
    if not isinstance(given, Mapping) or not given:
        raise InvalidFilter(f"arg={given!r}: expected values by name, such as {{'order_id': 42}}")
    checked = {}
    for name, value in given.items():
        if not isinstance(name, str) or not name:
            raise InvalidFilter(f"arg={given!r}: expected the name of an argument, got {name!r}")
        try:
            text = kombu_json.dumps(value)
            checked[name] = value if isinstance(value, TypedValue) else kombu_json.loads(text)
        except (TypeError, ValueError, RecursionError) as exc:
            raise InvalidFilter(
                f"arg={{{name!r}: {value!r}}}: expected a value that JSON can hold: {exc}"
            ) from exc
    return checked


class _Names(NamedTuple):
    """The places of the positional parameters of a task, by name.

    *takes_more* is whether the task takes further positional arguments, whose names are unknown.
    """

    places: Mapping[str, int]
    takes_more: bool


class ArgumentSearch:
    """Finds messages by arguments.

    A keyword argument has its name in the message. A positional argument gets its name from the
    signature of the task; ``"0"`` is the first positional argument of any task. A default of the
    task is not in the message, so it matches nothing.

    Parameters
    ----------
    wanted : Mapping[str, Any]
        Values by name; all of them must be equal.
    tasks : Mapping[str, Task]
        The tasks of the app by name.
    accept : Collection[str]
        Further content types that are decoded. Pickle runs code of whoever wrote the message.
    """

    def __init__(
        self, wanted: Mapping[str, Any], tasks: Mapping[str, Any], accept: Collection[str] = ()
    ) -> None:
        self._wanted = [(name, _Wanted.of(value)) for name, value in wanted.items()]
        self._tasks = tasks
        self._accept = READABLE_CONTENT_TYPES | {*accept}
        self._names: dict[str, _Names | None] = {}

    def matches(self, message: Any) -> bool | None:
        """Return whether a decoded message has the arguments; None if nobody can tell."""
        try:
            args, kwargs = self._arguments(message)
            task = message["headers"]["task"]
            is_unknown = False
            for name, wanted in self._wanted:
                found = [*self._values(name, task, args, kwargs)]
                if found == [_UNKNOWN]:
                    is_unknown = True
                elif not any(map(wanted.equals, found)):
                    return False
        except Exception:  # a body may be anything
            return None
        return None if is_unknown else True

    def select(self, items: Iterable[T], record_of: Callable[[T], bytes]) -> tuple[list[T], int]:
        """Return the items that have the arguments, and the number of those nobody can tell of.

        Parameters
        ----------
        items, record_of : Iterable, Callable
            The items, and a function that returns the record of one.
        """
        found, unknown = [], 0
        for item in items:
            try:
                verdict = self.matches(message_json.decode(Record.unpack(record_of(item)).message))
            except RecordError:
                verdict = None
            if verdict:
                found.append(item)
            unknown += verdict is None
        return found, unknown

    def _arguments(self, message: Any) -> tuple[Any, Any]:
        args, kwargs, _ = body_of(message, self._accept)
        if not isinstance(args, (list, tuple)) or not isinstance(kwargs, dict):
            raise TypeError("no arguments")
        return args, kwargs

    def _values(self, name: str, task: str, args: Any, kwargs: Any) -> Iterator[Any]:
        """Yield the value of an argument, or ``_UNKNOWN``, or nothing."""
        if name in kwargs:
            yield kwargs[name]
        elif name.isdecimal():
            yield from args[int(name) : int(name) + 1]
        elif args:
            names = self._names_of(task)
            place = None if names is None else names.places.get(name)
            if place is not None:
                yield from args[place : place + 1]
            elif names is None or (names.takes_more and len(args) > len(names.places)):
                yield _UNKNOWN

    def _names_of(self, task: str) -> _Names | None:
        """Return the names of positional parameters; None if this app cannot know them."""
        if task not in self._names:
            self._names[task] = _names_of(self._tasks.get(task))
        return self._names[task]


#: Stands for the value of an argument whose name is not known.
_UNKNOWN = object()


def _names_of(task: Any) -> _Names | None:
    try:
        parameters = [*inspect.signature(task.run).parameters.values()]
    except (TypeError, ValueError, AttributeError):
        return None
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [each.name for each in parameters if each.kind in kinds]
    takes_more = any(each.kind is each.VAR_POSITIONAL for each in parameters)
    return _Names({name: place for place, name in enumerate(positional)}, takes_more)


def named_arguments(task: Any, args: Iterable[Any]) -> dict[str, Any]:
    """Return positional arguments by the names that the signature of a task gives them."""
    names = _names_of(task)
    if names is None:
        return {}
    return dict(zip(names.places, args, strict=False))  # a call may have more or fewer


def argument_names(task: Any) -> set[str] | None:
    """Return the names of the arguments of a task; None if it may take others too."""
    try:
        parameters = inspect.signature(task.run).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return None
    return {each.name for each in parameters}


class _Wanted(NamedTuple):
    """The values that match, and a text that matches too."""

    values: tuple[Any, ...]
    text: str | None = None

    @classmethod
    def of(cls, value: Any) -> _Wanted:
        """Return what a wanted value matches."""
        if not isinstance(value, TypedValue):
            return cls((value,))
        try:
            return cls((json.loads(value),), str(value))
        except (ValueError, RecursionError):
            return cls((), str(value))

    def equals(self, value: Any) -> bool:
        """Return whether an argument of a message matches."""
        if any(_is_same(each, value) for each in self.values):
            return True
        if self.text is None or isinstance(value, (bool, int, float, list, dict)) or value is None:
            return False
        # A time in the form of `list --json`; any other value of kombu's types, such as a UUID.
        isoformat = getattr(value, "isoformat", None)
        return self.text == (str(value) if isoformat is None else isoformat())


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two values are the same in JSON, where True is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    return bool(one == other)
