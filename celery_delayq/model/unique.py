"""Unique keys: which tasks have the same key, and what happens to the second task. No I/O.

A unique key belongs to one entry. The key is free again when that entry is due or, with scope
``done``, when it is acknowledged, dead-lettered or cancelled (``include/unique_policy.lua``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple
from urllib.parse import quote

from celery_delayq.errors import InvalidETA, InvalidUnique
from celery_delayq.model.arguments.functions import option_of
from celery_delayq.model.arguments.key import KeyTemplate
from celery_delayq.utils.numbers import is_finite

#: What a new task does to the task that has its key: replace it; be refused; keep it and drop the
#: new task; replace it at the later of both due times.
POLICIES = ("replace", "error", "keep", "later")

#: How long a task has its key: until the task is due, or until it is acknowledged, dead-lettered or
#: cancelled.
SCOPES = ("scheduled", "done")

#: Names of our options of a task or of a call.
OPTIONS = ("unique_key", "on_conflict", "unique_scope", "max_wait", "skip_after")


class Key(str):
    """A unique key in plain text. It is no template: braces have no meaning."""

    __slots__ = ()


def options_of(task: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return our options: each from the call, or else from the task."""
    options = {name: option_of(task, name) for name in OPTIONS}
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
    template: KeyTemplate
    prefix: str
    policy: str
    max_wait: int = 0

    def key_problem(self) -> str | None:
        """Return why the key can be computed for no call; None if it can."""
        if isinstance(self.template.value, Key):
            return None
        return self.template.problem(self.task_name, self.task)

    def key_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return the unique key of a call.

        Raises
        ------
        InvalidUnique
            The key cannot be computed from the arguments.
        """
        value = self.template.value
        if not isinstance(value, Key):
            value = self.template.text_of(self.task_name, self.task, args, kwargs)
        return self.key(value)

    def key(self, text: str) -> str:
        """Return the unique key of a filled template; raises the errors of :meth:`key_of`."""
        return self.prefix + self.template.encoded(self.task_name, text)


def own_properties(
    task_name: str,
    task: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
    former_names: Sequence[str] = (),
) -> dict[str, Any]:
    """Return our own data for a message from the options of a call.

    Parameters
    ----------
    former_names : Sequence[str]
        Former names of the task. A message of one of them may have the same unique key.

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
        if former_names:
            own["unique"]["former_names"] = [*former_names]
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
    prefix = f"{scope[0]}{_key_prefix(task_name)}"
    keys = KeyTemplate(f"unique_key={template!r}", template, InvalidUnique)
    return UniqueRule(task_name, task, keys, prefix, policy, wait)


def _key_prefix(task_name: str) -> str:
    """Return the beginning of the unique keys of a task, without the scope."""
    return f"{quote(task_name)}:"


def renamed_key(key: str, former: str, name: str) -> str:
    """Return a unique key of the task *former* as the task *name* has it; other keys as given."""
    scope, rest = key[:1], key[1:]
    prefix = _key_prefix(former)
    return scope + _key_prefix(name) + rest[len(prefix) :] if rest.startswith(prefix) else key


def _milliseconds(name: str, value: Any, error: type[Exception]) -> int:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not is_finite(seconds, 0, 1e9) or not seconds:
        raise error(f"{name}={value!r}: expected a timedelta or seconds, more than 0")
    return math.ceil(seconds * 1000)
