"""Checks of the names of queues and tasks, and patterns of task names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from celery_delayq.errors import InvalidFilter
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
        *("totals", "unique", "wake"),
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
