"""Which tasks count as the same, and what happens to the second one. Policy, no I/O.

A unique key belongs to one entry. It is freed when that entry is due or, with scope ``done``, when
it is acknowledged, dead or cancelled (``include/unique_policy.lua``).
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

#: When another task has the key, the new task replaces it, is refused, is not sent, or replaces it
#: at the later of both times.
POLICIES = ("replace", "error", "keep", "later")

#: How long a task has its key: until it is due, or until it is acknowledged, dead or cancelled.
SCOPES = ("scheduled", "done")

#: The names of our options, of a task or of one call.
OPTIONS = ("unique_key", "on_conflict", "unique_scope", "max_wait", "skip_after")

#: Longer keys are kept as their SHA-256.
MAX_KEY_LENGTH = 200


class Key(str):
    """A unique key as plain text, not a template: braces in it mean nothing."""

    __slots__ = ()


_NAMES = frozenset(OPTIONS)


@cache
def _class_has_options(kind: Any) -> bool:
    return any(getattr(kind, name, None) is not None for name in OPTIONS)


def has_options(task: Any) -> bool:
    """Return whether a task has any of our options, quickly: most have none."""
    return _class_has_options(task.__class__) or not _NAMES.isdisjoint(
        getattr(task, "__dict__", ())
    )


def options_of(task: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return our options: those of the call, where there are none those of the task."""
    options = {name: getattr(task, name, None) for name in OPTIONS}
    if given.get("on_conflict") is not None:
        options["max_wait"] = None  # it goes with the policy of the task
    return {**options, **{name: value for name, value in given.items() if name in OPTIONS}}


class UniqueRule(NamedTuple):
    """The unique options of all calls of one kind.

    *prefix*, the first character of the scope and the task's name, begins their keys. *max_wait* is
    in ms, 0 for none.
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
            It cannot be worked out.
        """
        return self.key(_render(self.task_name, self.task, self.template, args, kwargs))

    def key(self, text: str) -> str:
        """Return the unique key for a filled template; raises the errors of `key_of`."""
        if not text.strip():
            raise InvalidUnique(
                f"{self.task_name}: unique_key={self.template!r} comes to an empty text for these "
                "arguments; all such tasks would count as one"
            )
        if not is_utf8(text):
            raise InvalidUnique(
                f"{self.task_name}: unique_key={self.template!r} comes to {text!r} for these "
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
    """Return the message property for our options.

    Raises
    ------
    InvalidUnique
        The key cannot be worked out, or the options contradict each other.
    InvalidETA
        ``skip_after`` is no time.
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
    """Return ``skip_after`` in ms, 0 for none.

    Raises
    ------
    InvalidETA
        It is no time.
    """
    given = options["skip_after"]
    return 0 if given in (None, False) else _milliseconds("skip_after", given, InvalidETA)


def rule_of(task_name: str, task: Any, options: Mapping[str, Any]) -> UniqueRule | None:
    """Return how calls with these options get their unique keys, None without a key.

    Parameters
    ----------
    task : Any
        The task, whose signature gives arguments their names; None where it is not known here.
    options : Mapping[str, Any]
        ``unique_key``: a template such as ``"order:{order_id}"`` over the arguments (``{0}`` is the
        first positional one), a callable that gets the arguments, or a :class:`Key`; False for
        none, since Celery drops a None. ``on_conflict``, ``unique_scope`` and ``max_wait``.

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
        failed = "failed for" if callable(template) else "cannot be worked out of"
        raise InvalidUnique(
            f"{given} {failed} args={args!r}, kwargs={dict(kwargs)!r}: {type(exc).__name__} {exc}"
        ) from exc
    if key is None or isinstance(key, bytes):
        raise InvalidUnique(f"{given} returned {key!r}, not a text")
    return str(key)


def _named(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return all arguments by name, defaults included, where the signature is known."""
    try:
        bound = inspect.signature(task.run).bind(*args, **kwargs)
    except (TypeError, ValueError, AttributeError):
        return kwargs
    bound.apply_defaults()
    # Arguments in **kwargs are named like the others.
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
