"""Keys made of a task's arguments: of unique tasks, and of the lanes of limits. No I/O."""

from __future__ import annotations

import inspect
import re
import string
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from types import FunctionType, MethodType
from typing import Any, NamedTuple

from celery.utils.saferepr import saferepr

from celery_delayq.utils.text import UTF8_TEXT, did_you_mean, is_utf8, percent

#: Most characters of a key; a longer key is stored as its SHA-256.
MAX_KEY_LENGTH = 200

#: What ends the name of an argument in a field of a template: ``{order.id}``, ``{order[id]}``.
_FIELD_END = re.compile(r"[.\[]")

#: Most characters of the arguments of a call in an error.
_MAX_SHOWN_CHARACTERS = 200


class KeyTemplate(NamedTuple):
    """A template of keys.

    Attributes
    ----------
    shown : str
        The option with its value, for errors: ``unique_key='order:{order_id}'``.
    value : Any
        A text with the names of arguments in braces (``{0}`` is the first positional argument), or
        a callable that gets the arguments.
    error : type[Exception]
        The class of all errors.
    """

    shown: str
    value: Any
    error: type[Exception]

    def text_of(
        self, task_name: str, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> str:
        """Return the template filled with the arguments of a call.

        *task* is None if this app does not know the task: then only the call names arguments.
        """
        given, template = f"{task_name}: {self.shown}", self.value
        if not (callable(template) or isinstance(template, str)):
            raise self.error(
                f"{given}: expected a template such as 'order:{{order_id}}', or a callable that "
                "gets the task's arguments"
            )
        try:
            if callable(template):
                key = template(*args, **kwargs)
            else:
                key = string.Formatter().vformat(template, args, _named(task, args, kwargs))
        except Exception as exc:
            failed = "failed for" if callable(template) else "cannot be computed from"
            reason = f"{type(exc).__name__} {exc}"
            if not callable(template) and isinstance(exc, KeyError):
                reason = f"no argument has the name {exc}"
            shown_args = saferepr(args, _MAX_SHOWN_CHARACTERS)
            shown_kwargs = saferepr(dict(kwargs), _MAX_SHOWN_CHARACTERS)
            raise self.error(
                f"{given} {failed} args={shown_args}, kwargs={shown_kwargs}: {reason}"
            ) from exc
        if key is None or isinstance(key, bytes):
            raise self.error(f"{given} returned {key!r}, not a text")
        return str(key)

    def unreadable(self) -> str | None:
        """Return why no call of any task can fill the template; None if a call may."""
        if not isinstance(self.value, str):
            return None
        if not self.value.strip():
            return f"{self.shown} is an empty text"
        try:
            list(string.Formatter().parse(self.value))
        except ValueError as exc:
            return f"{self.shown} cannot be read: {exc}"
        return None

    def problem(self, task_name: str, task: Any) -> str | None:
        """Return why no call of a task can fill the template; None if a call may."""
        if not isinstance(self.value, str):
            return None
        if text := self.unreadable():
            return f"{task_name}: {text}"
        fields = [name or "" for _, name, *_ in string.Formatter().parse(self.value)]
        try:
            parameters = _signature_of(task.run).parameters
        except (TypeError, ValueError, AttributeError):
            return None
        if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
            return None
        names = [_FIELD_END.split(field, maxsplit=1)[0] for field in fields]
        missing = [name for name in names if name and not name.isdigit() and name not in parameters]
        if not missing:
            return None
        return (
            f"{task_name}: {self.shown} cannot be computed, the task has no argument "
            f"{missing[0]!r}{did_you_mean(missing[0], parameters)}"
        )

    def encoded(self, task_name: str, text: str) -> str:
        """Return a filled template percent-encoded, or as its SHA-256."""
        if not text.strip():
            raise self.error(
                f"{task_name}: {self.shown} is an empty text for these arguments; all such tasks "
                "would count as one"
            )
        if not is_utf8(text):
            raise self.error(
                f"{task_name}: {self.shown} is {text!r} for these arguments: expected {UTF8_TEXT}"
            )
        key = percent(text)
        return key if len(key) <= MAX_KEY_LENGTH else sha256(text.encode()).hexdigest()


#: Reading a signature takes longer than binding arguments to it.
_kept_signature = lru_cache(maxsize=1000)(inspect.signature)


def _signature_of(run: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function; only those of Python functions are kept."""
    is_usual = type(run) in (FunctionType, MethodType)
    return _kept_signature(run) if is_usual else inspect.signature(run)


def _named(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return all arguments by name with defaults; only *kwargs* if the signature is not known."""
    try:
        bound = _signature_of(task.run).bind(*args, **kwargs)
    except (TypeError, ValueError, AttributeError):
        return kwargs
    bound.apply_defaults()
    # Arguments of a parameter such as **kwargs are named like the others.
    named = dict(bound.arguments)
    for parameter in bound.signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            named.update(named.pop(parameter.name))
    return named
