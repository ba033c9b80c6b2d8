"""Rewrites the calls in a message: that of its task, and those of the signatures inside. No I/O."""

from __future__ import annotations

import json
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import PurePath
from typing import Any, Literal

from celery.utils.saferepr import saferepr

from celery_delayq.errors import ConfigError, RecordError
from celery_delayq.model.changes import MessageChanges, MessageEditor
from celery_delayq.model.changes.body import Body
from celery_delayq.model.compat import MessageChecker
from celery_delayq.model.compat.binding import REFUSED_VERDICTS
from celery_delayq.model.compat.calls import CANVAS, MAPS, Part, calls_inside
from celery_delayq.model.payload import body_if_readable
from celery_delayq.utils.foreign import FOREIGN_ERRORS, record_errors

#: Where a call waits that may be rewritten.
WaitingPlace = Literal["scheduled", "dead", "periodic"]

#: Changes that a signature inside a message, or a periodic entry, may have.
_CALL_CHANGES = ("task", "args", "kwargs")

#: Further changes that a message may have.
_MESSAGE_CHANGES = ("priority", "expires", "headers")

#: Characters of an answer in an error.
_MAX_SHOWN_CHARACTERS = 200


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
    """The function raised an error, or returned no valid changes. Holds the text."""


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
    checker : MessageChecker
        Says which of the changed calls a task would not take.
    reads_arguments : bool
        Whether the function reads arguments. If not, the call of a message whose body cannot be
        decoded is rewritten too, and calls that the task would not take as well.
    unpickle : bool
        Whether pickled bodies are decoded.
    """

    def __init__(
        self,
        rewrite: Rewrite,
        names: Collection[str],
        editor_of: Callable[[Mapping[str, Any]], MessageEditor],
        checker: MessageChecker,
        *,
        reads_arguments: bool = True,
        unpickle: bool = False,
    ) -> None:
        self._rewrite = rewrite
        self._names = frozenset(names)
        self._spelled = [json.dumps(name)[1:-1].encode() for name in self._names]
        self._spelled += [name.encode() for name in self._names if not name.isascii()]
        self._editor_of = editor_of
        self._checker = checker
        self._reads_arguments = reads_arguments
        self._unpickle = unpickle

    def rewritten(
        self, message: Mapping[str, Any], message_call: WaitingCall
    ) -> RewrittenMessage | None:
        """Return the changes of a task message; None for none.

        Parameters
        ----------
        message_call : WaitingCall
            The call of the message without its arguments.

        Raises
        ------
        RewriteFailed
            The function raised an error or returned no changes, or a task does not take a changed
            call.
        RecordError
            The body cannot be decoded here, and the function reads arguments of the message.
        """
        is_wanted_task = self._wants(message_call.task)
        if not is_wanted_task and not self._may_name(message):
            return None
        try:
            body = Body.of(message, unpickle=self._unpickle)
        except RecordError as exc:
            if is_wanted_task and self._reads_arguments:
                raise
            changed = self._changes_of(message_call) if is_wanted_task else None
            return RewrittenMessage([changed] if changed else [], None, str(exc), self._editor_of)
        signature = {
            "task": message_call.task,
            "args": body.args,
            "kwargs": body.kwargs,
            "options": body.embedded,
        }
        inside = self._rewrite_inside(signature, message_call)
        call = replace(message_call, args=tuple(body.args), kwargs=dict(body.kwargs))
        changed = self._changes_of(call) if is_wanted_task else None
        if changed is not None:
            signature |= {name: changed.changes[name] for name in _own_changes(changed)}
        calls = [*([changed] if changed else []), *[call for _, call in inside]]
        changed_signatures = [signature] if changed and _own_changes(changed) else []
        self._check_bind(signature, [*changed_signatures, *[inner for inner, _ in inside]])
        return RewrittenMessage(calls, body if inside else None, "", self._editor_of)

    def rewritten_signature(
        self, signature: Mapping[str, Any], message_call: WaitingCall
    ) -> tuple[dict[str, Any], list[RewrittenCall]]:
        """Return a changed copy of the signature of a periodic entry, and the changes."""
        new = deepcopy(dict(signature))
        calls = self._rewrite_inside(new, message_call)
        found = [*self._rewrite_signature(new, message_call), *calls]
        self._check_bind(new, [changed for changed, _ in found])
        return new, [call for _, call in found]

    def _check_bind(
        self, signature: Mapping[str, Any], changed: Sequence[Mapping[str, Any]]
    ) -> None:
        """Refuse changed signatures in a signature whose tasks do not take the arguments.

        Raises
        ------
        RewriteFailed
            A task does not take the arguments, with those that Celery adds.
        """
        if not self._reads_arguments or not changed:
            return
        by_identity = {id(each) for each in changed}
        for call, problem in self._checker.problems_of_calls(signature):
            # The items of a map have one signature, which has no arguments of its own.
            of_map = problem.part is Part.MAP and any(
                each["task"] == problem.task for each in changed
            )
            if (id(call) in by_identity or of_map) and problem.verdict in REFUSED_VERDICTS:
                shown = ", ".join(
                    f"{name}={saferepr(call.get(name) or empty, _MAX_SHOWN_CHARACTERS)}"
                    for name, empty in (("args", ()), ("kwargs", {}))
                )
                raise RewriteFailed(
                    f"{_place_of(problem.part.value, problem.task) or f'{problem.task}: '}{shown}: "
                    f"{problem.verdict.value}: {problem.detail}"
                )

    def _wants(self, task: str) -> bool:
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
        self, signature: Mapping[str, Any], message_call: WaitingCall
    ) -> list[tuple[dict[str, Any], RewrittenCall]]:
        """Rewrite the signatures inside a signature in their place; return those with changes."""
        found: list[tuple[dict[str, Any], RewrittenCall]] = []
        with record_errors("body"):
            for inner, part in signatures_inside(signature):
                found += self._rewrite_signature(inner, replace(message_call, part=part.value))
        return found

    def _rewrite_signature(
        self, signature: dict[str, Any], call: WaitingCall
    ) -> list[tuple[dict[str, Any], RewrittenCall]]:
        task = str(signature["task"])
        if not self._wants(task):
            return []
        args, kwargs = tuple(signature.get("args") or ()), dict(signature.get("kwargs") or {})
        changed = self._changes_of(replace(call, task=task, args=args, kwargs=kwargs))
        if changed is None:
            return []
        if call.part == Part.MAP.value and changed.changes.keys() - {"task"}:
            why = "only the task of a map can be changed, not its arguments"
            raise RewriteFailed(f"{_place_of(call.part, task)}{why}")
        signature.update(changed.changes)
        return [(signature, changed)]

    def _changes_of(self, call: WaitingCall) -> RewrittenCall | None:
        """Call the function; return the changes that change something."""
        try:
            given = self._call_function(deepcopy(call))
            changes = {} if given is None else _changes_in(given, call)
        except Exception as exc:  # code of the user
            why = str(exc) if isinstance(exc, RewriteFailed) else f"{type(exc).__name__}: {exc}"
            raise RewriteFailed(_place_of(call.part, call.task) + why) from exc
        return RewrittenCall(call, changes) if changes else None

    def _call_function(self, call: WaitingCall) -> Any:
        """Call the function; raise RewriteFailed with the line of the function that failed."""
        try:
            return self._rewrite(call)
        except Exception as exc:  # code of the user
            text = f"{type(exc).__name__}: {exc}"
            in_function = exc.__traceback__ and exc.__traceback__.tb_next
            if in_function is not None:
                file = PurePath(in_function.tb_frame.f_code.co_filename).name
                text += f" ({file}, line {in_function.tb_lineno})"
            raise RewriteFailed(text) from exc


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
                edited = self._editor_of(call.changes).edit(edited)
        return edited


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


def calls_of_message(message: Mapping[str, Any]) -> Counter[tuple[Part, str]] | None:
    """Return how often a task message calls which tasks in which parts, besides its own task.

    None if the body cannot be read. Pickle is not decoded.
    """
    body = body_if_readable(message)
    if body is None:
        return None
    args, kwargs, embedded = body
    try:
        task = message["headers"]["task"]
        signature = {"task": task, "args": args, "kwargs": kwargs, "options": embedded}
        return Counter((part, str(inner["task"])) for inner, part in signatures_inside(signature))
    except FOREIGN_ERRORS:
        return None


def is_same(one: Any, other: Any) -> bool:
    """Return whether two values are encoded alike: 1, 1.0 and True are not."""
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, dict):
        return is_same([*one.items()], [*other.items()])
    # Equal decimals and times may differ in their digits and their offset.
    return bool(one == other) and (isinstance(one, str) or repr(one) == repr(other))


def _changes_in(given: Any, call: WaitingCall) -> dict[str, Any]:
    """Return what a function's answer changes in a call; raises RewriteFailed for no changes."""
    _check_names(given, call)
    changes = {name: value for name, value in given.items() if value is not None}
    try:
        task, args, kwargs = map(changes.get, _CALL_CHANGES)
        MessageChanges(task, args, kwargs).check()
    except ConfigError as exc:
        raise RewriteFailed(f"it returned {exc}") from exc
    if "args" in changes:
        changes["args"] = [*changes["args"]]
    known = {"task": call.task, "args": [*call.args], "kwargs": call.kwargs}
    return {
        name: value
        for name, value in changes.items()
        if name not in known or not is_same(value, known[name])
    }


def _own_changes(changed: RewrittenCall) -> set[str]:
    """Return the names of the changes that decide whether a task takes a call."""
    return {*_CALL_CHANGES} & {*changed.changes}


def _place_of(part: str, task: str) -> str:
    """Return where in a message a call is, before a colon; ``""`` for the call of the message."""
    return "" if part == Part.MESSAGE.value else f"{part}, {task}: "


def _check_names(given: Any, call: WaitingCall) -> None:
    is_message = call.part == Part.MESSAGE.value and call.place != "periodic"
    valid = (*_CALL_CHANGES, *_MESSAGE_CHANGES) if is_message else _CALL_CHANGES
    if isinstance(given, Mapping) and {*given} <= {*valid}:
        return
    shown = saferepr(given, _MAX_SHOWN_CHARACTERS)
    text = f"it returned {shown}: expected None, or a dict with {', '.join(valid)}"
    if not is_message and isinstance(given, Mapping) and {*given} & {*_MESSAGE_CHANGES}:
        where = "place='periodic'" if call.place == "periodic" else f"part={call.part!r}"
        text += (
            f"; this call has {where}, and only that of a message may have "
            f"{', '.join(_MESSAGE_CHANGES)}"
        )
    raise RewriteFailed(text)
