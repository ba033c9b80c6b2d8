"""Rewrites the calls in a message: that of its task, and those of the signatures inside. No I/O."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

from celery_delayq.errors import RecordError
from celery_delayq.model.changes import MessageEditor
from celery_delayq.model.changes.body import Body
from celery_delayq.model.compat.calls import CANVAS, MAPS, Part, calls_inside
from celery_delayq.model.envelope import PROPERTY, own_of, unique_key
from celery_delayq.model.unique import renamed_key
from celery_delayq.utils.foreign import record_errors

#: Where a call waits that may be rewritten.
WaitingPlace = Literal["scheduled", "dead", "periodic"]

#: Changes that a signature inside a message, or a periodic entry, may have.
_CALL_CHANGES = frozenset({"task", "args", "kwargs"})

#: Changes that a message may have.
_MESSAGE_CHANGES = _CALL_CHANGES | {"priority", "expires", "headers"}


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingCall:
    """A call of a task that waits: that of a message, or of a signature inside a message.

    Attributes
    ----------
    task : str
        The name of the task.
    args, kwargs : tuple, dict
        The arguments that are stored. The result of another task may come before them, if *part* is
        not ``"message"``. Copies: a change of them changes nothing.
    part : str
        ``"message"``; or the place of a signature in a message: ``"chain"``, ``"group"``,
        ``"callback"``, ``"errback"``, ``"chord body"`` or ``"map"``.
    place : str
        Where the message waits: ``"scheduled"``, ``"dead"`` or ``"periodic"``.
    id, queue : str
        Id and queue of the message; name and ``""`` of a periodic entry.
    due : datetime | None
        When the message is due, in UTC; None for dead letters and periodic entries.
    """

    task: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    part: str = Part.MESSAGE.value
    place: WaitingPlace = "scheduled"
    id: str = ""
    queue: str = ""
    due: datetime | None = None


#: Returns the changes of a call by their names; None for no change.
Rewrite = Callable[[WaitingCall], Mapping[str, Any] | None]


@dataclass(frozen=True, slots=True)
class RewrittenCall:
    """A call that is rewritten.

    Attributes
    ----------
    before : WaitingCall
        The call as it is stored.
    changes : Mapping[str, Any]
        Its changes by name: ``task``, ``args``, ``kwargs``, and of a message also those of
        ``delayq.update``.
    """

    before: WaitingCall
    changes: Mapping[str, Any]


class RewriteFailed(Exception):
    """The function raised an error, or returned something else than changes. Holds the text."""


class Rewriter:
    """Finds the changes of a message, and makes them.

    Parameters
    ----------
    rewrite : Rewrite
        The function.
    names : Collection[str]
        The names of the tasks whose calls are rewritten; empty for all.
    editor_of : Callable[[Mapping[str, Any]], MessageEditor]
        Returns the editor for changes of ``delayq.update``.
    reads_arguments : bool
        Whether the function reads arguments. If not, the call of a message whose body cannot be
        decoded is rewritten too.
    unpickle : bool
        Whether pickled bodies are decoded.
    """

    def __init__(
        self,
        rewrite: Rewrite,
        names: Collection[str],
        editor_of: Callable[[Mapping[str, Any]], MessageEditor],
        *,
        reads_arguments: bool = True,
        unpickle: bool = False,
    ) -> None:
        self._rewrite = rewrite
        self._names = frozenset(names)
        self._spelled = [json.dumps(name)[1:-1].encode() for name in self._names]
        self._spelled += [name.encode() for name in self._names if not name.isascii()]
        self._editor_of = editor_of
        self._reads_arguments = reads_arguments
        self._unpickle = unpickle

    def rewritten(self, message: Mapping[str, Any], whole: WaitingCall) -> RewrittenMessage | None:
        """Return the changes of a task message; None for none.

        Parameters
        ----------
        whole : WaitingCall
            The message without its arguments.

        Raises
        ------
        RewriteFailed
            The function raised an error, or returned no changes.
        RecordError
            The body cannot be decoded here, and the function reads arguments of the message.
        """
        is_meant = self._means(whole.task)
        if not is_meant and not self._may_name(message):
            return None
        try:
            body = Body.of(message, unpickle=self._unpickle)
        except RecordError as exc:
            if is_meant and self._reads_arguments:
                raise
            changed = self._changes_of(whole) if is_meant else None
            return RewrittenMessage([changed] if changed else [], None, str(exc), self._editor_of)
        signature = {
            "task": whole.task,
            "args": body.args,
            "kwargs": body.kwargs,
            "options": body.embedded,
        }
        inside = self._rewrite_inside(signature, whole)
        call = replace(whole, args=tuple(deepcopy(body.args)), kwargs=deepcopy(dict(body.kwargs)))
        changed = self._changes_of(call) if is_meant else None
        calls = [*([changed] if changed else []), *inside]
        return RewrittenMessage(calls, body if inside else None, "", self._editor_of)

    def rewritten_signature(
        self, signature: Mapping[str, Any], whole: WaitingCall
    ) -> tuple[dict[str, Any], list[RewrittenCall]]:
        """Return a changed copy of the signature of a periodic entry, and the changes."""
        new = deepcopy(dict(signature))
        calls = self._rewrite_inside(new, whole)
        own = self._rewrite_signature(new, whole)
        return new, [*own, *calls]

    def _means(self, task: str) -> bool:
        return not self._names or task in self._names

    def _may_name(self, message: Mapping[str, Any]) -> bool:
        """Return whether a message may have a call of one of the tasks inside. Decodes no JSON."""
        if not self._names:
            return True
        if message.get("content-type") != "application/json" or message["headers"].get(
            "compression"
        ):
            return True
        body = str(message.get("body"))
        with record_errors("body"):
            is_base64 = message["properties"].get("body_encoding") == "base64"
            data = b64decode(body) if is_base64 else body.encode()
        # An escape may hide characters of a name.
        return any(name in data for name in self._spelled) or b"\\u00" in data

    def _rewrite_inside(
        self, signature: Mapping[str, Any], whole: WaitingCall
    ) -> list[RewrittenCall]:
        """Rewrite the signatures inside a signature in their place."""
        found: list[RewrittenCall] = []
        with record_errors("body"):
            for inner, part in signatures_inside(signature):
                found += self._rewrite_signature(inner, replace(whole, part=part.value))
        return found

    def _rewrite_signature(
        self, signature: dict[str, Any], call: WaitingCall
    ) -> list[RewrittenCall]:
        task = str(signature["task"])
        if not self._means(task):
            return []
        args, kwargs = tuple(signature.get("args") or ()), dict(signature.get("kwargs") or {})
        call = replace(call, task=task, args=deepcopy(args), kwargs=deepcopy(kwargs))
        changed = self._changes_of(call, _CALL_CHANGES)
        if changed is None:
            return []
        if call.part == Part.MAP.value and changed.changes.keys() - {"task"}:
            raise RewriteFailed("only the task of a map can be changed, not its arguments")
        signature.update(changed.changes)
        return [changed]

    def _changes_of(
        self, call: WaitingCall, valid: Collection[str] = _MESSAGE_CHANGES
    ) -> RewrittenCall | None:
        """Call the function; return the changes that change something."""
        try:
            given = self._rewrite(deepcopy(call))
        except Exception as exc:  # code of the user
            raise RewriteFailed(f"{type(exc).__name__}: {exc}") from exc
        if given is None:
            return None
        if not isinstance(given, Mapping) or not {*given} <= {*valid}:
            names = ", ".join(sorted(valid))
            raise RewriteFailed(f"it returned {given!r}: expected None, or a dict with {names}")
        changes = {name: value for name, value in given.items() if value is not None}
        _check_call(changes)
        if "args" in changes:
            changes["args"] = [*changes["args"]]
        known = {"task": call.task, "args": [*call.args], "kwargs": call.kwargs}
        changes = {
            name: value
            for name, value in changes.items()
            if name not in known or value != known[name]
        }
        return RewrittenCall(call, changes) if changes else None


@dataclass(frozen=True, slots=True)
class RewrittenMessage:
    """The changes of one message.

    Attributes
    ----------
    calls : Sequence[RewrittenCall]
        The changes, that of the message first.
    undecoded : str
        Why signatures inside the message were not looked at; ``""`` if they were.
    """

    calls: Sequence[RewrittenCall]
    _body: Body | None
    undecoded: str
    _editor_of: Callable[[Mapping[str, Any]], MessageEditor]

    def apply(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return a changed copy of the message; raises the errors of :class:`MessageEditor`."""
        edited = dict(message)
        if self._body is not None:
            edited = self._body.written_to(edited)
        for call in self.calls:
            if call.before.part == Part.MESSAGE.value:
                edited = self._with_changes(edited, call)
        return edited

    def _with_changes(self, message: dict[str, Any], call: RewrittenCall) -> dict[str, Any]:
        changes = dict(call.changes)
        if task := changes.pop("task", None):
            message = _renamed(message, call.before.task, task)
        return self._editor_of(changes).edit(message) if changes else message


def signatures_inside(signature: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], Part]]:
    """Yield the signatures inside a signature, and inside those, each once.

    A signature of ``celery.map`` and the like stands for the calls of all its items.
    """
    found: list[tuple[Any, Part]] = [(signature, Part.MESSAGE)]
    while found:
        current, part = found.pop()
        if current is not signature and current["task"] not in CANVAS:
            yield current, part
        args, kwargs = tuple(current.get("args") or ()), current.get("kwargs") or {}
        if current["task"] in MAPS:
            found.append((kwargs["task"] if "task" in kwargs else args[0], Part.MAP))
            current = {**current, "task": ""}
        found += [(call.signature, call.part) for call in calls_inside(current, args, kwargs, ())]


def _renamed(message: Mapping[str, Any], former: str, name: str) -> dict[str, Any]:
    """Return a message with another task, and the unique key of this task."""
    properties = dict(message["properties"])
    own = dict(own_of(properties))
    if key := unique_key(own):
        own["unique"] = {
            "policy": "replace",
            **own.get("unique", {}),
            "key": renamed_key(key, former, name),
        }
        properties[PROPERTY] = own
    headers = {**message["headers"], "task": name}
    return {**message, "headers": headers, "properties": properties}


def _check_call(changes: Mapping[str, Any]) -> None:
    task = changes.get("task")
    if task is not None and (not isinstance(task, str) or not task):
        raise RewriteFailed(f"it returned task={task!r}: expected the name of a task")
    args, kwargs = changes.get("args"), changes.get("kwargs")
    if args is not None and not isinstance(args, (list, tuple)):
        raise RewriteFailed(f"it returned args={args!r}: expected a list")
    if kwargs is not None and not (
        isinstance(kwargs, Mapping) and all(isinstance(name, str) for name in kwargs)
    ):
        raise RewriteFailed(f"it returned kwargs={kwargs!r}: expected arguments by name")
