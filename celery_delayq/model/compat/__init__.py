"""Whether the code of an app could run a message, and the signatures inside it. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from celery import Task

from celery_delayq.model.compat.binding import Bound, TaskBinding, Verdict, binding_of
from celery_delayq.model.compat.calls import CANVAS, RESULT, Call, Part, calls_inside
from celery_delayq.model.payload import READABLE_CONTENT_TYPES, body_of
from celery_delayq.utils.foreign import FOREIGN_ERRORS

#: Content types that kombu decodes whether an app accepts them or not. A signed message has one.
ALWAYS_ACCEPTED = frozenset({"application/data", "application/text"})


class Problem(NamedTuple):
    """A call that would fail, or of which nobody can tell; *detail* is for people."""

    task: str
    part: Part
    verdict: Verdict
    detail: str = ""


class MessageChecker:
    """Checks messages against the tasks of an app.

    Parameters
    ----------
    tasks : Mapping[str, Task]
        The registered tasks.
    accept : Collection[str]
        The content types that the app's workers accept.
    unpickle : bool
        Whether content is decoded that may run code when it is decoded: pickle, signed messages and
        serializers of the app.
    """

    def __init__(
        self, tasks: Mapping[str, Task], accept: Collection[str], *, unpickle: bool = False
    ) -> None:
        self._tasks = tasks
        self._accept = ALWAYS_ACCEPTED | {*accept}
        self._decodable = self._accept if unpickle else self._accept & READABLE_CONTENT_TYPES

    def message_problems(self, message: Any) -> list[Problem]:
        """Return the problems of a decoded message, each once."""
        headers = message.get("headers") if isinstance(message, dict) else None
        if not isinstance(headers, dict):
            return [Problem("?", Part.MESSAGE, Verdict.UNREADABLE)]
        task = headers.get("task")
        if not isinstance(task, str):
            return [Problem("?", Part.MESSAGE, Verdict.OTHER_PROTOCOL)]
        content_type = str(message.get("content-type") or "application/data")
        if content_type not in self._accept:
            refused = Problem(task, Part.MESSAGE, Verdict.CONTENT_TYPE, content_type)
            return [*self._unregistered(task), refused]
        if content_type not in self._decodable:
            unknown = Problem(task, Part.MESSAGE, Verdict.NOT_DECODED, content_type)
            return [*self._unregistered(task)] or [unknown]
        try:
            args, kwargs, embedded = body_of(message, self._decodable)
        except Exception as exc:  # decoding may raise anything
            return [Problem(task, Part.MESSAGE, Verdict.UNREADABLE, type(exc).__name__)]
        # What a message embeds has the names of a signature's options, or similar ones.
        signature = {"task": task, "args": args, "kwargs": kwargs, "options": embedded}
        return self.signature_problems(signature)

    def signature_problems(self, signature: Mapping[str, Any]) -> list[Problem]:
        """Return the problems of a signature, each once."""
        return [*dict.fromkeys(problem for _, problem in self.problems_of_calls(signature))]

    def problems_of_calls(self, signature: Mapping[str, Any]) -> Iterator[tuple[Any, Problem]]:
        """Yield the call of a signature, and each call inside it, that has a problem."""
        calls = [Call(signature, Part.MESSAGE)]
        while calls:
            call = calls.pop()
            task = "?"
            try:
                task = call.signature["task"]
                if not isinstance(task, str):
                    raise TypeError("no name")
                args, kwargs, added = self._arguments(call)
                if task not in CANVAS:
                    bound = self._bind(task, (*added, *args), kwargs)
                    if bound.verdict is not Verdict.BINDS:
                        yield call.signature, Problem(task, call.part, *bound)
                calls += calls_inside(call.signature, args, kwargs, added)
            except FOREIGN_ERRORS as exc:
                detail = type(exc).__name__
                yield call.signature, Problem(str(task), call.part, Verdict.UNREADABLE, detail)

    def _unregistered(self, task: str) -> Iterator[Problem]:
        if task not in self._tasks:
            yield Problem(task, Part.MESSAGE, Verdict.NOT_REGISTERED)

    def _arguments(self, call: Call) -> tuple[tuple[Any, ...], Mapping[str, Any], tuple[Any, ...]]:
        """Return the arguments of a signature, and those that Celery adds first."""
        signature = call.signature
        args, kwargs = signature.get("args"), signature.get("kwargs")
        args, kwargs = () if args is None else args, {} if kwargs is None else kwargs
        if not isinstance(args, (list, tuple)) or not isinstance(kwargs, Mapping):
            raise TypeError("no arguments")
        if signature.get("immutable"):
            return tuple(args), kwargs, ()
        added = call.added
        if call.part is Part.ERRBACK:
            binding = self._binding(signature["task"])
            added = RESULT if binding is None else binding.errback_arguments(signature)
        return tuple(args), kwargs, added

    def _bind(self, task: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Bound:
        binding = self._binding(task)
        return Bound(Verdict.NOT_REGISTERED) if binding is None else binding.bind(args, kwargs)

    def _binding(self, name: str) -> TaskBinding | None:
        task = self._tasks.get(name)
        return None if task is None else binding_of(task)
