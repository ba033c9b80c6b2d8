"""Values that travel with every task that is sent while they are bound. No I/O.

A :class:`State` holds the values bound at one point. It never changes, and it refers to the state
around it. So one context variable holds the whole stack, each thread, greenlet and asyncio task has
its own, and sending a task costs a reference to a text that exists already.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from contextlib import ContextDecorator
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property, lru_cache, wraps
from reprlib import repr as short_repr
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar, cast

from celery_delayq.errors import InvalidContext
from celery_delayq.model.context import trace_context
from celery_delayq.model.context.trace_context import Trace
from celery_delayq.utils import foreign

F = TypeVar("F", bound=Callable[..., Any])

#: Most bytes of all values together, in JSON. This is no setting: values belong to no app, and a
#: reader with a smaller limit than the sender's would have to drop values.
MAX_BYTES = 4096

#: Longest text of a log record, in characters.
MAX_LOG_CHARACTERS = 500

#: The attribute of log records.
RECORD_ATTRIBUTE = "delayq_context"

_HEADERS = frozenset({trace_context.PARENT, trace_context.STATE})
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}")
_PLAIN_TYPES = frozenset({str, int, float, bool, type(None)})
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class EncodedContext(NamedTuple):
    """Values in JSON: each one, and all as one object (``""`` without any)."""

    pieces: Mapping[str, str]
    text: str

    @classmethod
    def of(cls, pieces: Mapping[str, str]) -> EncodedContext:
        """Put values together.

        Raises
        ------
        InvalidContext
            They are too large.
        """
        if not pieces:
            return NO_VALUES
        text = "{" + ",".join([f'"{name}":{piece}' for name, piece in pieces.items()]) + "}"
        size = len(text) if text.isascii() else len(text.encode())
        if size > MAX_BYTES:
            largest = max(pieces, key=lambda name: len(pieces[name]))
            raise InvalidContext(
                f"context of {size} bytes, of which {largest} has the most: expected at most "
                f"{MAX_BYTES} bytes of JSON; bind an id and look the rest up where it is needed"
            )
        return cls(pieces, text)


NO_VALUES = EncodedContext(MappingProxyType({}), "")


@dataclass(eq=False)
class State:
    """The values bound at one point.

    Parameters
    ----------
    owner : object
        The object that bound it, and may unbind it.
    encoded : EncodedContext
    trace : Trace | None
    outer : State | None
        The state before.
    undo : Callable[[], None] | None
        Called when it ends.
    """

    owner: object
    encoded: EncodedContext
    trace: Trace | None
    outer: State | None
    undo: Callable[[], None] | None = None

    @cached_property
    def values(self) -> Mapping[str, Any]:
        """All values by name, with those of the trace."""
        values = foreign.loads(self.encoded.text or "{}")
        if self.trace is not None:
            values.update(self.trace.as_headers())
        return MappingProxyType(values)

    @cached_property
    def line(self) -> str:
        """All values in one short line for people, without ``tracestate``."""
        shown = (
            f"{name}={_shown(value)}"
            for name, value in self.values.items()
            if name != trace_context.STATE
        )
        line = " ".join(shown)
        return line if len(line) <= MAX_LOG_CHARACTERS else f"{line[: MAX_LOG_CHARACTERS - 1]}…"


_BOUND_VALUES: ContextVar[State | None] = ContextVar("delayq_context", default=None)

#: Return the current state, or None.
bound: Callable[[], State | None] = _BOUND_VALUES.get

_EMPTY: Mapping[str, Any] = MappingProxyType({})


def current_context() -> Mapping[str, Any]:
    """Return the bound values by name; the mapping is read-only."""
    state = _BOUND_VALUES.get()
    return _EMPTY if state is None else state.values


def enter(
    owner: object,
    encoded: EncodedContext,
    trace: Trace | None,
    undo: Callable[[], None] | None = None,
) -> None:
    """Bind these values in place of all others, until *owner* leaves."""
    _BOUND_VALUES.set(State(owner, encoded, trace, _BOUND_VALUES.get(), undo))


def leave(owner: object) -> None:
    """Restore the state before *owner* entered, whoever has entered since.

    It does nothing where the owner has left already, or entered in another thread or asyncio task.
    """
    top = _BOUND_VALUES.get()
    found = owned_by(owner)
    if found is None:
        return
    _BOUND_VALUES.set(found.outer)
    while top is not None and top is not found.outer:
        if top.undo is not None:
            top.undo()
        top = top.outer


def owned_by(owner: object) -> State | None:
    """Return the state that *owner* has bound here, or None."""
    state = _BOUND_VALUES.get()
    while state is not None and state.owner is not owner:
        state = state.outer
    return state


def context(**values: Any) -> Binding:
    """Bind values to all tasks that are sent inside a ``with`` statement or a decorated function.

    They travel through delays and retries, and are bound again around the handler, so the tasks
    that it sends have them too. Of nested values with one name the inner one counts.

    Parameters
    ----------
    **values
        JSON: texts, numbers, bools, lists, and dicts with texts for names. None removes a name.
        ``traceparent`` and ``tracestate``, as a web server received them, go into the headers of
        messages; those that are invalid by W3C are left out.

    Raises
    ------
    InvalidContext
        A name is invalid, a value is not JSON, or all values together are larger than 4096 bytes
        (`MAX_BYTES`).

    Examples
    --------
    >>> with context(user="ada"):
    ...     with context(order=17):
    ...         dict(current_context())
    {'user': 'ada', 'order': 17}
    """
    return Binding(values)


class Binding(ContextDecorator):
    """The result of :func:`context`; it may be entered many times, in any thread."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._change = ContextChange(values)
        # Values that are too large for any message are refused here, where the caller sees it.
        self._change.over(NO_VALUES, None)

    def __enter__(self) -> Mapping[str, Any]:
        outer = _BOUND_VALUES.get()
        encoded, trace = (
            self._change.over(NO_VALUES, None)
            if outer is None
            else self._change.over(outer.encoded, outer.trace)
        )
        undo = None
        if trace is not None and (outer is None or trace is not outer.trace):
            undo = trace_context.tell_opentelemetry(trace)
        enter(self, encoded, trace, undo)
        return current_context()

    def __exit__(self, *_: object) -> None:
        leave(self)

    def __call__(self, function: F) -> F:
        """Decorate a function or a coroutine function."""
        if hasattr(function, "apply_async"):
            raise InvalidContext(
                f"context(…) decorates {function!r}, which is a task already; put it below "
                "@app.task, next to the function"
            )
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidContext(
                f"context(…) decorates {function!r}, a generator, which runs when it has returned; "
                "use `with` inside it"
            )
        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return await function(*args, **kwargs)

            return cast(F, awaited)
        return super().__call__(function)


class ContextChange:
    """Checked values in JSON, to bind over others.

    Raises
    ------
    InvalidContext
        A name is invalid, or a value is not JSON.
    """

    __slots__ = ("_pieces", "_trace")

    def __init__(self, values: Mapping[str, Any]) -> None:
        #: None for a value that is removed.
        self._pieces: dict[str, str | None] = {}
        #: False for no trace, None for the trace around.
        self._trace: Trace | Literal[False] | None = None
        for name, value in values.items():
            if name in _HEADERS:
                if value is not None and not isinstance(value, str):
                    raise InvalidContext(
                        f"context {name}={short_repr(value)}: expected the text of that header"
                    )
                if name == trace_context.PARENT:
                    self._trace = False if value is None else Trace.of(values)
                continue
            self._pieces[_checked_name(name)] = None if value is None else piece(name, value)

    def over(
        self, encoded: EncodedContext, trace: Trace | None
    ) -> tuple[EncodedContext, Trace | None]:
        """Return these values bound over others.

        Raises
        ------
        InvalidContext
            It is too large.
        """
        if self._trace is not None:
            trace = self._trace or None
        if self._pieces:
            merged = {**encoded.pieces, **self._pieces}
            encoded = EncodedContext.of(
                {name: text for name, text in merged.items() if text is not None}
            )
        return encoded, trace


@lru_cache(maxsize=1024)
def _checked_name(name: Any) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidContext(
            f"context name {short_repr(name)}: expected letters, digits, '_', '.' and '-', "
            "at most 100 of them, the first A to Z, a to z or '_'"
        )
    return name


def piece(name: str, value: Any) -> str:
    """Return a value in JSON.

    Raises
    ------
    InvalidContext
        It is not JSON: the receiver would read another value.
    """
    try:
        text = _encode(value)
        text.encode()
        # Plain values stay equal, and the error of a large value is about its size.
        if (
            type(value) not in _PLAIN_TYPES
            and len(text) <= MAX_BYTES
            and foreign.loads(text) != value
        ):
            raise ValueError("it would come out of JSON as something else")
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidContext(
            f"context {name}={short_repr(value)}: expected JSON, that is a text, a number, a bool, "
            f"a list or a dict with texts for names, such as str() of a UUID or date ({exc})"
        ) from exc
    return text


def read(given: Any) -> EncodedContext:
    """Read the text of values, written by any sender.

    Raises
    ------
    InvalidContext
        It has no valid values, or is too large.
    """
    if not isinstance(given, str):
        raise InvalidContext(f"a {type(given).__name__}, not a text")
    if len(given) > MAX_BYTES:
        raise InvalidContext(f"more than {MAX_BYTES} bytes")
    try:
        values = foreign.loads(given)
    except (ValueError, RecursionError) as exc:
        raise InvalidContext(f"no JSON: {short_repr(given)}") from exc
    if not isinstance(values, dict):
        raise InvalidContext(f"no JSON object: {short_repr(given)}")
    pieces = {_checked_name(name): piece(name, value) for name, value in values.items()}
    if not _HEADERS.isdisjoint(pieces):
        names = f"{trace_context.PARENT} and {trace_context.STATE}"
        raise InvalidContext(f"{names} belong into headers")
    return EncodedContext.of(pieces)


# -- log records ----------------------------------------------------------------------------------


def _shown(value: Any) -> str:
    """Return a value for a log line, so that it cannot look like another value or another line."""
    plain = isinstance(value, str) and value.isprintable()
    if plain and value and not any(mark in value for mark in ' "='):
        return cast(str, value)
    return json.dumps(value)  # all but ASCII letters, digits and the like are escaped
