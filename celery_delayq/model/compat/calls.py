"""The calls inside a message: chains, groups, callbacks, errbacks, chords. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple

from celery_delayq.model.compat.binding import UNKNOWN

#: Celery's tasks that are parts of a canvas. What they hold is called, they themselves are not.
CANVAS = frozenset({"celery.chain", "celery.group", "celery.chord"})

#: Celery's tasks that call another task directly, with one argument or with several.
MAPS = {"celery.map": False, "celery.starmap": True, "celery.chunks": True}

RESULT = (UNKNOWN,)


class Part(Enum):
    """The part of a message that calls a task."""

    MESSAGE = "message"
    CHAIN = "chain"
    GROUP = "group"
    CALLBACK = "callback"
    ERRBACK = "errback"
    CHORD_BODY = "chord body"
    MAP = "map"


class Call(NamedTuple):
    """A signature, and the arguments that Celery adds first when it calls the task.

    For an errback the task decides which arguments Celery adds.
    """

    signature: Any
    part: Part
    added: tuple[Any, ...] = ()


def _calls_of_options(options: Mapping[str, Any]) -> Iterator[Call]:
    """Yield what a task calls when it ends. Messages and signatures have other names for it."""
    for name, part in (
        ("callbacks", Part.CALLBACK),
        ("link", Part.CALLBACK),
        ("errbacks", Part.ERRBACK),
        ("link_error", Part.ERRBACK),
        ("chord", Part.CHORD_BODY),
        ("chain", Part.CHAIN),
    ):
        for each in _listed(options.get(name)):
            yield Call(each, part, RESULT)


def calls_inside(
    signature: Mapping[str, Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    added: tuple[Any, ...],
) -> Iterator[Call]:
    """Yield what the task of a signature calls, and what its options name."""
    yield from _calls_of_options(signature.get("options") or {})
    task = signature["task"]
    if task == "celery.chain":
        first, *rest = _listed(kwargs.get("tasks")) or [None]
        if first is not None:
            yield Call(first, Part.CHAIN, (*added, *args))
        for each in rest:
            yield Call(each, Part.CHAIN, RESULT)
    elif task == "celery.group":
        for each in _listed(kwargs.get("tasks")):
            yield Call(each, Part.GROUP, (*added, *args))
    elif task == "celery.chord":
        for each in _listed(kwargs.get("header")):
            yield Call(each, Part.GROUP, (*added, *args))
        if kwargs.get("body") is not None:
            yield Call(kwargs["body"], Part.CHORD_BODY, RESULT)
    elif task == "celery.chord_unlock":
        body = kwargs["callback"] if "callback" in kwargs else args[1]
        yield Call(body, Part.CHORD_BODY, RESULT)
    elif task in MAPS:
        given = dict(zip(("task", "it"), args, strict=False)) | {**kwargs}
        for item in given["it"]:
            its = tuple(item) if MAPS[task] else (item,)
            inner = {"task": given["task"]["task"], "args": its}
            yield Call(inner, Part.MAP)


def _listed(value: Any) -> list[Any]:
    """Return signatures as a list: one may stand alone."""
    if value is None:
        return []
    return [value] if isinstance(value, Mapping) else [*value]
