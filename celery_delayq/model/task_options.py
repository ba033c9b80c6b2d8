"""Checks of task messages and options: wrong values would end a worker. No I/O."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from numbers import Real
from typing import Any

from celery.utils.saferepr import saferepr

from celery_delayq.errors import InvalidOption
from celery_delayq.model.envelope import (
    LIMIT_FIELD,
    MAPPINGS,
    MAX_DUE_MS,
    due_of_countdown,
    due_of_eta,
    own_of,
    unique_key,
)
from celery_delayq.model.limits import LIMIT_OPTION
from celery_delayq.model.unique import OPTIONS, POLICIES
from celery_delayq.utils.numbers import is_integer
from celery_delayq.utils.text import UTF8_TEXT, is_utf8

#: The names of the two numbers in the header ``timelimit``.
TIME_LIMIT_NAMES = ("time_limit", "soft_time_limit")

#: Characters of a wrong value in an error.
_MAX_SHOWN_CHARACTERS = 200

#: The parts of a message that scripts read, each one word.
_MESSAGE_ID = re.compile(r"[!-~]+")
_KEY = re.compile(r"[sd][!-~]+")
_LABEL = re.compile(r"[!-~]+ [!-~]+ [0-9]{1,15} (-|[sd][!-~]+)")
_LIMIT = re.compile(r"[\w.~/%-]{1,200}:[\w.~/%-]{0,200}( [0-9]{1,15})?", re.ASCII)

#: Headers by which workers and result backends know a task.
TASK_HEADERS = ("id", "shadow", "root_id", "parent_id", "group")

#: Headers that Celery sets in each message.
CELERY_HEADERS = frozenset(
    {
        *("argsrepr", "eta", "expires", "group", "group_index", "id", "ignore_result"),
        *("kwargsrepr", "lang", "origin", "parent_id", "replaced_task_nesting", "retries"),
        *("root_id", "shadow", "stamped_headers", "stamps", "task", "timelimit"),
    }
)

#: Options of a task that change its messages.
_MESSAGE_OPTIONS = frozenset({*OPTIONS, LIMIT_OPTION})


@cache
def _class_has_options(kind: Any) -> bool:
    return any(getattr(kind, name, None) is not None for name in _MESSAGE_OPTIONS)


def has_options(task: Any) -> bool:
    """Return whether a task has an option that changes its messages.

    The check is quick, since most tasks have none.
    """
    return _class_has_options(task.__class__) or not _MESSAGE_OPTIONS.isdisjoint(
        getattr(task, "__dict__", ())
    )


def check_received(headers: Mapping[str, Any]) -> None:
    """Check the ids, the name, the stamps and the time limits of a received task.

    Invalid values would end or block the worker, not only the task.

    Raises
    ------
    InvalidOption
        A value is invalid.
    """
    if _is_usual(headers):
        return
    id = headers.get("id")
    if not isinstance(id, str) or not id:
        raise InvalidOption(f"id={id!r}: expected the id of a task, a text")
    for name in TASK_HEADERS[1:]:
        if isinstance(value := headers.get(name), (list, dict)):
            raise InvalidOption(f"{name}={value!r}: expected a text or null")
    check_identity(headers)
    names, stamps = headers.get("stamped_headers"), headers.get("stamps")
    if names and not (isinstance(names, (list, tuple)) and all(isinstance(x, str) for x in names)):
        raise InvalidOption(f"stamped_headers={names!r}: expected the names of stamps, or null")
    if stamps and not isinstance(stamps, Mapping):
        raise InvalidOption(f"stamps={stamps!r}: expected stamps by name")
    check_time_limits(headers)


def check_body(args: Any, kwargs: Any, embedded: Any) -> None:
    """Check the parts of a task's body.

    Celery acknowledges a task with a wrong body, and only logs the error.

    Raises
    ------
    InvalidOption
        A part has a wrong type.
    """
    if not isinstance(args, (list, tuple)):
        raise InvalidOption(f"args={saferepr(args, _MAX_SHOWN_CHARACTERS)}: expected a list")
    for name, value in (("kwargs", kwargs), ("embedded options", embedded or {})):
        if not isinstance(value, MAPPINGS) or not all(isinstance(key, str) for key in value):
            raise InvalidOption(
                f"{name}={saferepr(value, _MAX_SHOWN_CHARACTERS)}: expected values by name"
            )


def _is_usual(headers: Mapping[str, Any]) -> bool:
    """Return whether headers are valid and usual; a quick check, since it runs for every task."""
    get = headers.get
    for name in ("id", "task", "root_id"):
        text = get(name)
        if type(text) is not str or not text or not text.isascii():
            return False
    parent, limits = get("parent_id"), get("timelimit")
    return (
        (parent is None or (type(parent) is str and parent.isascii()))
        and (not limits or limits == [None, None])
        and get("shadow") is None
        and get("group") is None
        and not get("stamped_headers")
        and not get("stamps")
    )


def check_identity(headers: Mapping[str, Any]) -> None:
    """Check the task's name and ids; raises the errors of :func:`check_text`."""
    for name in ("task", *TASK_HEADERS):
        value = headers.get(name)
        if value is not None and not (isinstance(value, str) and value.isascii()):  # quick
            check_text(name, value)


def check_text(option: str, value: Any) -> None:
    """Check a text that becomes part of a key in Redis.

    Raises
    ------
    InvalidOption
        No key can hold the text.
    """
    if isinstance(value, str) and not is_utf8(value):
        raise InvalidOption(f"{option}={value!r}: expected {UTF8_TEXT}")


def check_own(properties: Mapping[str, Any]) -> None:
    """Check the parts of a message that scripts read; any producer may have written them.

    Raises
    ------
    InvalidOption
        A part is not in the format of this package, so scripts cannot read it.
    """
    own = own_of(properties)
    message_id = own.get("message_id", properties.get("delivery_tag"))
    if not isinstance(message_id, str) or not _MESSAGE_ID.fullmatch(message_id[:16]):
        raise InvalidOption(
            f"message id={message_id!r}: expected a text of printable ASCII without spaces"
        )
    if "label" in own and not (isinstance(own["label"], str) and _LABEL.fullmatch(own["label"])):
        raise InvalidOption(
            f"label={own['label']!r}: expected '<id> <message_id> <ms> <unique key>'"
        )
    skip_after = own.get("skip_after", 0)
    if not is_integer(skip_after, 0, MAX_DUE_MS):
        raise InvalidOption(f"skip_after={skip_after!r}: expected a number of ms")
    limit = own.get(LIMIT_FIELD)
    if LIMIT_FIELD in own and not (isinstance(limit, str) and _LIMIT.fullmatch(limit)):
        raise InvalidOption(f"limit={limit!r}: expected '<limit>:<key> <expires in ms>'")
    given = own.get("unique")
    if "unique" in own and not (
        isinstance(given, Mapping)
        and given.get("policy") in POLICIES
        and is_integer(given.get("max_wait", 0), 0, MAX_DUE_MS)
        and isinstance(names := given.get("former_names", []), list)
        and all(isinstance(name, str) and name and is_utf8(name) for name in names)
        and isinstance(key := unique_key(own), str)
        and _KEY.fullmatch(key)
    ):
        raise InvalidOption(
            f"unique={given!r}: expected 'key' and 'policy', as DelayQ(app) writes them"
        )


def check_time_limits(headers: Mapping[str, Any]) -> None:
    """Check the time limits of a task message.

    Celery sets timers with them in the worker's main process. A wrong limit ends that process.

    Raises
    ------
    InvalidOption
        A limit is no number of seconds, or the header has not two limits.
    """
    limits = headers.get("timelimit")
    if not limits or limits == [None, None]:  # Celery reads both as no limits
        return
    if not isinstance(limits, (list, tuple)) or len(limits) != len(TIME_LIMIT_NAMES):
        raise InvalidOption(
            f"timelimit={limits!r}: expected [time_limit, soft_time_limit], such as [60, null]"
        )
    for name, seconds in zip(TIME_LIMIT_NAMES, limits, strict=True):
        if seconds and not _is_seconds(seconds):
            raise InvalidOption(
                f"{name}={seconds!r}: expected a number of seconds above 0, such as 3600 or 0.5"
            )


def check_sent(headers: Mapping[str, Any]) -> None:
    """Check a task message before it is sent.

    Raises
    ------
    InvalidOption
        An id, a name, a time limit or the number of retries is invalid.
    """
    check_identity(headers)
    check_time_limits(headers)
    retries = headers.get("retries")
    if retries is not None and (not isinstance(retries, int) or retries < 0):
        raise InvalidOption(f"retries={retries!r}: expected a whole number from 0")


def check_expires(expires: Any) -> None:
    """Check the value of the option ``expires`` of a call; Celery checks only its type.

    Raises
    ------
    InvalidOption
        The value is no point in time, or is outside the years 1 to 9999.
    """
    try:
        if isinstance(expires, Real):
            due_of_countdown(expires, "expires")
        elif isinstance(expires, (str, datetime)):
            due_of_eta(expires)
    except ValueError:
        raise InvalidOption(
            f"expires={expires!r}: expected a number of seconds, a datetime or its ISO 8601 form, "
            "such as '2030-01-31T09:00:00+00:00', in the years 1 to 9999"
        ) from None


def check_priority(priority: Any) -> None:
    """Check the priority of a message that is being sent.

    Raises
    ------
    InvalidOption
        *priority* is no number. kombu would take the lowest priority without an error.
    """
    try:
        if priority is not None:
            int(priority)
    except (TypeError, ValueError, OverflowError):
        raise InvalidOption(
            f"priority={priority!r}: expected a whole number, 0 to 9 on Redis"
        ) from None


def _is_seconds(value: Any) -> bool:
    try:
        return isinstance(value, Real) and math.isfinite(value) and float(value) > 0
    except OverflowError:
        return False
