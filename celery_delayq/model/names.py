"""Names of queues and tasks: checks, patterns, filters and former names. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import fields as fields_of
from fnmatch import fnmatchcase
from inspect import signature
from typing import Any, TypeVar

from celery import Celery

from celery_delayq.errors import ConfigError, InvalidFilter
from celery_delayq.utils.delegation import unknown_argument
from celery_delayq.utils.text import UTF8_TEXT, is_utf8

T = TypeVar("T")

#: What errors expect instead of a queue whose ready list :func:`is_own_key`.
OWN_KEY_TEXT = (
    "another name, the list of that queue would be a key of celery_delayq: those begin with "
    "'delayq:', or are '{…}:due' and the like"
)

#: What follows ``{queue}:`` in the keys of a queue (``store.keys.QueueKeys``).
QUEUE_KEYS = frozenset(
    {
        *("answer", "dead", "dead_at", "deliveries", "due", "duplicate_ids", "entries"),
        *("held", "lanes", "lanes_wake"),
        *("leased", "leased_index", "leases", "moved", "moved_before", "pace", "paused_due"),
        *("quarantine_turn", "quarantined", "readers", "ready_index", "request_numbers", "tasks"),
        *("totals", "turning", "unique", "wake"),
    }
)

_OF_QUEUE = re.compile(r"\{.*\}:(\w+)(:.*)?", re.DOTALL)


def is_own_key(queue: str) -> bool:
    """Return whether the ready list of a queue would be one of our own keys.

    The ready list of a queue has the queue's name.
    """
    match = _OF_QUEUE.fullmatch(queue)
    return queue.startswith("delayq:") or (match is not None and match[1] in QUEUE_KEYS)


def check_name(field: str, name: Any, *, as_key: bool = True) -> None:
    """Check the name of a queue or task; None is valid.

    Parameters
    ----------
    as_key : bool
        Whether the name is part of a key in Redis.

    Raises
    ------
    InvalidFilter
        The name is empty or no text, or no key can hold the name.
    """
    if name is not None and (not isinstance(name, str) or not name):
        raise InvalidFilter(f"{field}={name!r}: expected a name, or None for any")
    if as_key and name is not None and not is_utf8(name):
        raise InvalidFilter(f"{field}={name!r}: expected {UTF8_TEXT}")
    if field == "queue" and name is not None and is_own_key(name):
        raise InvalidFilter(f"queue={name!r}: expected {OWN_KEY_TEXT}")


def is_by_name(value: Any) -> bool:
    """Return whether a value has other values by name, such as keyword arguments."""
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)


def values_by_pattern(
    option: str, given: Mapping[Any, Any], make: Callable[[Any], T], error: type[Exception]
) -> dict[str, T]:
    """Return values by a pattern of task names, such as ``"shop.mail.*"``.

    Parameters
    ----------
    option : str
        The name of the option, for errors.
    make : Callable[[Any], T]
        Makes each value; raises *error* for an invalid value.

    Raises
    ------
    Exception
        An error of the class *error*: a pattern or a value is invalid.
    """
    values = {}
    for pattern, value in given.items():
        if not isinstance(pattern, str) or not pattern:
            raise error(f"{option}={{{pattern!r}: …}}: expected a pattern such as 'shop.mail.*'")
        try:
            values[pattern] = make(value)
        except error as exc:
            raise error(f"{option}={{{pattern!r}: …}}: {exc}") from exc
    return values


def first_match(values: Mapping[str, T], name: str) -> T | None:
    """Return the value of the first pattern that matches a task's name, or None."""
    return next((value for pattern, value in values.items() if fnmatchcase(name, pattern)), None)


def unmatched_patterns(values: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Return the patterns that match no task of the app, by the tasks' names."""
    names = [name for name in names if not name.startswith("celery.")]
    return [each for each in values if not any(fnmatchcase(name, each) for name in names)]


def filter_of(
    kind: type[T], filter: T | None, fields: Mapping[str, Any], call: Callable[..., Any]
) -> T:
    """Return the filter of a call: the one that was given, or one with the given fields.

    Parameters
    ----------
    kind : type
        ``Filter`` or ``DeadFilter``.
    filter : Filter | DeadFilter | None
        The filter that the caller gave.
    fields : Mapping[str, Any]
        The keyword arguments of the caller that *call* has no parameters for.
    call : Callable
        The function that was called. Errors name its keyword arguments too.

    Raises
    ------
    TypeError
        A keyword is neither a field nor an argument of the call.
    InvalidFilter
        *filter* is no filter, both a filter and fields are given, or a field is invalid.
    """
    names = [each.name for each in fields_of(kind)]  # type: ignore[arg-type]
    if unknown := next((name for name in fields if name not in names), None):
        parameters = signature(call).parameters.values()
        options = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
        raise unknown_argument(unknown, fields[unknown], [*names, *options])
    example = f"a {kind.__name__}(…), or its fields by name, such as task='shop.remind'"
    if filter is None:
        return kind(**fields)
    if not isinstance(filter, kind):
        raise InvalidFilter(f"filter={filter!r}: expected {example}")
    if given := [f"{name}={value!r}" for name, value in fields.items() if value is not None]:
        raise InvalidFilter(
            f"{filter!r} and {', '.join(given)}: give one of them, expected {example}"
        )
    return filter


# -- former names

#: The attribute of an app with its :class:`Renames`.
_RENAMES = "_delayq_renames"

_EXPECTED_TEXT = (
    "expected the names of tasks by their former names, such as {'shop.old': 'shop.new'}"
)


class Renames:
    """The former names of an app's tasks.

    Parameters
    ----------
    given : Mapping[str, str] | None
        Names of tasks by their former names. A name that is itself a former name is followed.

    Raises
    ------
    ConfigError
        A name is empty or no text, or names lead in a circle.
    """

    def __init__(self, given: Mapping[str, str] | None = None) -> None:
        if given is None:
            given = {}
        if not isinstance(given, Mapping):
            raise ConfigError(f"renamed={given!r}: {_EXPECTED_TEXT}")
        for former, name in given.items():
            for each in (former, name):
                if not isinstance(each, str) or not each or not is_utf8(each):
                    raise ConfigError(f"renamed={{{former!r}: {name!r}}}: {_EXPECTED_TEXT}")
        #: The name of the task by each former name.
        self.by_former_name = {former: _last_name(given, former) for former in given}
        self._former_names: dict[str, tuple[str, ...]] = {}
        for former, name in self.by_former_name.items():
            self._former_names[name] = (*self._former_names.get(name, ()), former)

    def __bool__(self) -> bool:
        return bool(self.by_former_name)

    def of(self, name: str) -> str:
        """Return the name of the task as which messages of *name* run."""
        return self.by_former_name.get(name, name)

    def former_names(self, name: str) -> tuple[str, ...]:
        """Return the former names of a task; a former name has none."""
        return self._former_names.get(name, ())

    def names(self, name: str) -> tuple[str, ...]:
        """Return a name, and its former names."""
        return (name, *self.former_names(name))

    def all_names(self, name: str) -> tuple[str, ...]:
        """Return all names of the task that runs messages of *name*; none if it has but one."""
        found = self.names(self.of(name))
        return found if len(found) > 1 else ()

    def with_former_names(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return values by the names of tasks, and the same values by the former names."""
        found = dict(values)
        for former, name in self.by_former_name.items():
            if name in values:
                found[former] = values[name]
        return found

    def check_tasks(self, tasks: Container[str]) -> None:
        """Raise ConfigError if an app has a task with a former name, or lacks the task of one."""
        for former, name in self.by_former_name.items():
            if former in tasks:
                raise ConfigError(
                    f"renamed={{{former!r}: {name!r}}}: the app has a task {former!r}, so its "
                    f"messages cannot run as {name!r}; delete the task, or this entry of renamed"
                )
            if name not in tasks:
                raise ConfigError(
                    f"renamed={{{former!r}: {name!r}}}: the app has no task {name!r}; give the "
                    "name of a task of this app"
                )

    def share(self, app: Celery) -> None:
        """Make these the former names of the tasks of *app*."""
        setattr(app, _RENAMES, self)


#: No task has a former name.
NO_RENAMES = Renames()


def renames_of(app: Celery) -> Renames:
    """Return the former names of the tasks of an app."""
    found: Renames = getattr(app, _RENAMES, NO_RENAMES)
    return found


def _last_name(given: Mapping[str, str], former: str) -> str:
    """Return the name to which a former name leads; raises ConfigError for a circle."""
    path = [former]
    while path[-1] in given:
        name = given[path[-1]]
        if name in path:
            circle = " → ".join(map(repr, [*path, name]))
            raise ConfigError(f"renamed: the names lead in a circle, {circle}")
        path.append(name)
    return path[-1]
