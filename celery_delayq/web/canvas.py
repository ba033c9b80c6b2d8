"""The canvas of a task as a tree: what follows it, and what waits for it. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from celery_delayq.model.payload import MessageFields, body_if_readable

#: Most tasks of a tree, and most levels.
MAX_NODES, MAX_LEVELS = 200, 12


@dataclass(slots=True)
class Node:
    """A task of a canvas.

    Attributes
    ----------
    role : str
        What it is for the task above it: ``"then"``, ``"on error"``, ``"in the group"``, and so on.
    name : str
        The name of the task, or ``"chain"``, ``"group"`` or ``"chord"``.
    id : str
        The id of the task; ``""`` if it has none yet.
    """

    role: str
    name: str
    id: str = ""
    children: list[Node] = field(default_factory=list)

    def rows(self, level: int = 0) -> Iterator[tuple[int, Node]]:
        """Yield this task and all below it, each with its level."""
        yield level, self
        for each in self.children:
            yield from each.rows(level + 1)


def tree_of(task: MessageFields) -> Node | None:
    """Return the tree below a task; None without a canvas."""
    body = body_if_readable(task.message or {})
    if body is None:
        return None
    embedded, headers = body[2], task.headers
    root = Node("this task", str(headers.get("task") or "?"), str(headers.get("id") or ""))
    left = [MAX_NODES]
    roles = {"callbacks": "on success", "errbacks": "on error"}
    for name, role in roles.items():
        root.children += _nodes(role, embedded.get(name), left, 1)
    chain = embedded.get("chain")
    if isinstance(chain, list):  # the last link comes first
        root.children += _nodes("then", chain[::-1], left, 1)
    if isinstance(embedded.get("chord"), Mapping):
        root.children += _nodes("when all are done", [embedded["chord"]], left, 1)
    return root if root.children else None


def _nodes(role: str, signatures: Any, left: list[int], level: int) -> Iterator[Node]:
    for each in signatures if isinstance(signatures, list) else ():
        if not isinstance(each, Mapping):
            continue
        if not left[0] or level > MAX_LEVELS:
            yield Node("", "…")
            return
        left[0] -= 1
        yield _node(role, each, left, level)


def _node(role: str, signature: Mapping[str, Any], left: list[int], level: int) -> Node:
    kind, kwargs = signature.get("subtask_type"), signature.get("kwargs")
    options = signature.get("options")
    options = options if isinstance(options, Mapping) else {}
    kwargs = kwargs if isinstance(kwargs, Mapping) else {}
    node = Node(role, str(kind or signature.get("task") or "?"), str(options.get("task_id") or ""))
    below = level + 1
    if kind == "chain":
        node.children += _nodes("link", kwargs.get("tasks"), left, below)
    elif kind == "group":
        node.children += _nodes("in the group", kwargs.get("tasks"), left, below)
    elif kind == "chord":
        header = kwargs.get("header")
        if isinstance(header, Mapping):
            header = (header.get("kwargs") or {}).get("tasks")
        node.children += _nodes("in the header", header, left, below)
        node.children += _nodes("when all are done", [kwargs.get("body")], left, below)
    node.children += _nodes("on success", options.get("link"), left, below)
    node.children += _nodes("on error", options.get("link_error"), left, below)
    return node
