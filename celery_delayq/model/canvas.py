"""Groups, chains and chords in the messages of their tasks. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from celery.app.task import Context

#: Our field: the group of the chain that this message begins. Celery sets ``group`` only in the
#: message of the last link.
GROUP_FIELD = "group"


class Canvas(NamedTuple):
    """All tasks with one root id (*kind* ``r``) or of one group (``g``)."""

    kind: str
    id: str

    @property
    def text(self) -> str:
        """The text of the canvas in the set of revoked ids."""
        return self.kind + self.id

    @classmethod
    def all_of(cls, headers: Mapping[str, Any], own: Mapping[str, Any]) -> set[Canvas]:
        """Return all canvases of a task with these headers and own data."""
        ids = {"r": headers.get("root_id"), "g": group_of(headers, own)}
        return {cls(kind, str(id)) for kind, id in ids.items() if id}


def group_of(headers: Mapping[str, Any], own: Mapping[str, Any]) -> Any:
    """Return the id of the group to which a task, or the chain that it begins, belongs."""
    return headers.get("group") or own.get(GROUP_FIELD)


def group_of_chain(chain: Sequence[Mapping[str, Any]] | None) -> Any:
    """Return the id of the group of which a chain is a member, or None."""
    # Celery stores the last link first. If that link is a chord, its body belongs to the group.
    link = chain[0] if chain else None
    while link:
        group = (link.get("options") or {}).get("group_id")
        if group or link.get("subtask_type") != "chord":
            return group
        link = _body_of(link)
    return None


def without_chord(signature: Any) -> Any:
    """Return a chained signature whose failure is not reported to the chord around it.

    Celery's ``_fail_chain`` reads this signature. The body of an inner chord belongs to the outer
    chord, so its chord is removed too.
    """
    if not isinstance(signature, Mapping):
        return signature
    options, kwargs = signature.get("options") or {}, signature.get("kwargs") or {}
    found = {**signature, "options": {n: v for n, v in options.items() if n != "chord"}}
    if signature.get("subtask_type") == "chord":
        found["kwargs"] = {**kwargs, "body": without_chord(kwargs.get("body"))}
    return found


def chord_contexts(request: Context) -> Iterator[Context]:
    """Yield the contexts of those tasks in a task and its chain for which a chord waits.

    Result backends need these contexts to report to the chord.
    """
    found = [request]
    for signature in request.chain or ():
        found += _link_contexts(signature)
    return (each for each in found if each.chord)


def _link_contexts(signature: Mapping[str, Any]) -> Iterator[Context]:
    options = signature.get("options") or {}
    yield Context(
        id=options.get("task_id"),
        group=options.get("group_id"),
        group_index=options.get("group_index"),
        chord=options.get("chord"),
    )
    if signature.get("subtask_type") == "chord" and (body := _body_of(signature)):
        yield from _link_contexts(body)


def _body_of(chord: Mapping[str, Any]) -> Any:
    return (chord.get("kwargs") or {}).get("body")
