"""Unique keys: which tasks have the same key, and what happens to the second task. No I/O.

A unique key belongs to one entry. The key is free again when that entry is due or, with scope
``done``, when it is acknowledged, dead-lettered or cancelled (``include/unique_policy.lua``).
"""

from __future__ import annotations

import inspect
import math
import string
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cache
from hashlib import sha256
from typing import Any, NamedTuple
from urllib.parse import quote

from celery_delayq.errors import InvalidETA, InvalidUnique
from celery_delayq.model.envelope import percent
from celery_delayq.model.names import UTF8_TEXT, is_utf8
from celery_delayq.utils.numbers import is_finite

#: What a new task does to the task that has its key: replace it; be refused; keep it and drop the
#: new task; replace it at the later of both due times.
POLICIES = ("replace", "error", "keep", "later")

#: How long a task has its key: until the task is due, or until it is acknowledged, dead-lettered or
#: cancelled.
SCOPES = ("scheduled", "done")

#: Names of our options of a task or of a call.
OPTIONS = ("unique_key", "on_conflict", "unique_scope", "max_wait", "skip_after")

#: Most characters of a key; a longer key is stored as its SHA-256.
MAX_KEY_LENGTH = 200


class Key(str):
    """A unique key in plain text. It is no template: braces have no meaning."""

    __slots__ = ()


_NAMES = frozenset(OPTIONS)


@cache
def _class_has_options(kind: Any) -> bool:
    return any(getattr(kind, name, None) is not None for name in OPTIONS)


def has_options(task: Any) -> bool:
    """Return whether a task has any of our options. The check is quick, since most have none."""
    return _class_has_options(task.__class__) or not _NAMES.isdisjoint(
        getattr(task, "__dict__", ())
    )


def options_of(task: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return our options: each from the call, or else from the task."""
    options = {name: getattr(task, name, None) for name in OPTIONS}
    if given.get("on_conflict") is not None:
        options["max_wait"] = None  # the max_wait of a task belongs to its own policy
    return {**options, **{name: value for name, value in given.items() if name in OPTIONS}}


class UniqueRule(NamedTuple):
    """The unique options of all calls of one kind.

    *prefix* begins each key: the first character of the scope, and the task's name. *max_wait* is
    in ms; 0 means no limit.
    """

    task_name: str
    task: Any
    template: Any
    prefix: str
    policy: str
    max_wait: int = 0

    def key_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return the unique key of a call.

        Raises
        ------
        InvalidUnique
            The key cannot be computed from the arguments.
        """
        return self.key(_render(self.task_name, self.task, self.template, args, kwargs))

    def key(self, text: str) -> str:
        """Return the unique key of a filled template; raises the errors of :meth:`key_of`."""
        if not text.strip():
            raise InvalidUnique(
                f"{self.task_name}: unique_key={self.template!r} is an empty text for these "
                "arguments; all such tasks would count as one"
            )
        if not is_utf8(text):
            raise InvalidUnique(
                f"{self.task_name}: unique_key={self.template!r} is {text!r} for these "
                f"arguments: expected {UTF8_TEXT}"
            )
        key = percent(text)
        if len(key) > MAX_KEY_LENGTH:
            key = sha256(text.encode()).hexdigest()
        return self.prefix + key


def own_properties(
    task_name: str,
    task: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Return our own data for a message from the options of a call.

    Raises
    ------
    InvalidUnique
        The key cannot be computed, or the options contradict each other.
    InvalidETA
        ``skip_after`` is no number of seconds above 0.
    """
    own: dict[str, Any] = {}
    rule = rule_of(task_name, task, options)
    if rule is not None:
        own["unique"] = {"key": rule.key_of(args, kwargs), "policy": rule.policy}
        if rule.max_wait:
            own["unique"]["max_wait"] = rule.max_wait
    if skip_after := skip_after_of(options):
        own["skip_after"] = skip_after
    return own


def skip_after_of(options: Mapping[str, Any]) -> int:
    """Return ``skip_after`` in ms; 0 without the option.

    Raises
    ------
    InvalidETA
        The option is no number of seconds above 0.
    """
    given = options["skip_after"]
    return 0 if given in (None, False) else _milliseconds("skip_after", given, InvalidETA)


def rule_of(task_name: str, task: Any, options: Mapping[str, Any]) -> UniqueRule | None:
    """Return the rule for the unique keys of calls with these options; None without a key.

    Parameters
    ----------
    task : Any
        The task; its signature gives the arguments their names. None if this app does not know it.
    options : Mapping[str, Any]
        ``unique_key``, ``on_conflict``, ``unique_scope`` and ``max_wait``. ``unique_key`` is a
        template such as ``"order:{order_id}"`` (``{0}`` is the first positional argument), a
        callable that gets the arguments, or a :class:`Key`. False means no key, even if the task
        has one: Celery drops options that are None.

    Raises
    ------
    InvalidUnique
        The options contradict each other.
    """
    template = None if options["unique_key"] is False else options["unique_key"]
    policy, scope, max_wait = (
        options[name] for name in ("on_conflict", "unique_scope", "max_wait")
    )
    if template is None:
        wrong = [
            f"{name}={options[name]!r}"
            for name in ("on_conflict", "unique_scope", "max_wait")
            if options[name] is not None and not hasattr(task, name)
        ]
        if wrong:
            raise InvalidUnique(
                f"{task_name}: {', '.join(wrong)} without unique_key=; give a key, such as "
                "unique_key='order:{order_id}'"
            )
        return None
    policy = "replace" if policy is None else policy
    scope = "scheduled" if scope is None else scope
    if policy not in POLICIES:
        raise InvalidUnique(
            f"{task_name}: on_conflict={policy!r}; valid are: {', '.join(POLICIES)}"
        )
    if scope not in SCOPES:
        raise InvalidUnique(f"{task_name}: unique_scope={scope!r}; valid are: {', '.join(SCOPES)}")
    if max_wait is not None and policy != "later":
        raise InvalidUnique(
            f"{task_name}: max_wait={max_wait!r} goes with on_conflict='later' only, "
            f"not with {policy!r}"
        )
    wait = 0 if max_wait is None else _milliseconds("max_wait", max_wait, InvalidUnique)
    prefix = f"{scope[0]}{quote(task_name)}:"
    return UniqueRule(task_name, task, template, prefix, policy, wait)


def _render(
    task_name: str, task: Any, template: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> str:
    if isinstance(template, Key):
        return str(template)
    given = f"{task_name}: unique_key={template!r}"
    if not (callable(template) or isinstance(template, str)):
        raise InvalidUnique(
            f"{given}: expected a template such as 'order:{{order_id}}', or a callable that gets "
            "the task's arguments"
        )
    try:
        if callable(template):
            key = template(*args, **kwargs)
        else:
            key = string.Formatter().vformat(template, args, _named(task, args, kwargs))
    except Exception as exc:
        failed = "failed for" if callable(template) else "cannot be computed from"
        raise InvalidUnique(
            f"{given} {failed} args={args!r}, kwargs={dict(kwargs)!r}: {type(exc).__name__} {exc}"
        ) from exc
    if key is None or isinstance(key, bytes):
        raise InvalidUnique(f"{given} returned {key!r}, not a text")
    return str(key)


def _named(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return all arguments by name with defaults; only *kwargs* if the signature is not known."""
    try:
        bound = inspect.signature(task.run).bind(*args, **kwargs)
    except (TypeError, ValueError, AttributeError):
        return kwargs
    bound.apply_defaults()
    # Arguments of a parameter such as **kwargs are named like the others.
    named = dict(bound.arguments)
    for parameter in bound.signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            named.update(named.pop(parameter.name))
    return named


def _milliseconds(name: str, value: Any, error: type[Exception]) -> int:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not is_finite(seconds, 0, 1e9) or not seconds:
        raise error(f"{name}={value!r}: expected a timedelta or seconds, more than 0")
    return math.ceil(seconds * 1000)
