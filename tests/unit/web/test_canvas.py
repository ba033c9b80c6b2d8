"""Canvases as trees."""

from __future__ import annotations

import json
from typing import Any

import pytest
from celery import Celery, chain, chord, group

from celery_delayq.model.payload import TaskMessage
from celery_delayq.web.canvas import MAX_NODES, tree_of

app = Celery("canvas", set_as_current=False)


@app.task(name="add", shared=False)
def add(*args: int) -> int:
    return sum(args)


def message(**embedded: Any) -> TaskMessage:
    body = json.dumps([[1], {}, embedded])
    headers = {"id": "root", "task": "add"}
    return TaskMessage(
        {
            "body": body, "headers": headers, "properties": {},
            "content-type": "application/json", "content-encoding": "utf-8",
        }
    )  # fmt: skip


@pytest.mark.parametrize(
    ("embedded", "expected"),
    [
        ({"callbacks": [add.s(2)]}, [(0, "add"), (1, "add")]),
        ({"chain": [add.s(3), add.s(2)]}, [(0, "add"), (1, "add"), (1, "add")]),
        (
            {"callbacks": [chord(group(add.s(1), add.s(2)), add.s())]},
            [(0, "add"), (1, "chord"), (2, "add"), (2, "add"), (2, "add")],
        ),
        (
            {"errbacks": [chain(add.s(1), add.s(2))]},
            [(0, "add"), (1, "chain"), (2, "add"), (2, "add")],
        ),
    ],
)
def test_a_canvas_is_a_tree(embedded: Any, expected: list[tuple[int, str]]) -> None:
    tree = tree_of(message(**embedded))

    assert tree is not None
    assert [(level, node.name) for level, node in tree.rows()] == expected


@pytest.mark.parametrize("embedded", [{}, {"chain": 7}, {"callbacks": [None, 3]}, {"chord": []}])
def test_what_is_no_canvas_has_no_tree(embedded: Any) -> None:
    assert tree_of(message(**embedded)) is None
    assert tree_of(TaskMessage({})) is None


def test_an_endless_canvas_is_cut() -> None:
    deep: Any = add.s(1)
    for _ in range(40):
        deep = {"task": "add", "args": [], "kwargs": {}, "options": {"link": [deep]}}
    wide = [add.s(n) for n in range(10 * MAX_NODES)]

    for embedded in ({"callbacks": [deep]}, {"callbacks": wide}):
        tree = tree_of(message(**embedded))
        assert tree is not None
        assert len([*tree.rows()]) <= MAX_NODES + 2
