"""The parent of a task is found faster, and is the one that Celery finds."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from celery import Celery
from celery._state import _task_stack
from celery.app import base
from celery.utils.threads import _FastLocalStack

from celery_delayq import DelayQ
from celery_delayq.integration.fast import parents
from tests.support import TIMEOUT


def unchanged(function: Any) -> Any:
    """Return the function of Celery that ``DelayQ(app)`` may have replaced."""
    return getattr(function, "__wrapped__", function)


def task_of(app: Celery, name: str) -> Any:
    """Return a task that no other app gets."""

    def work() -> None:
        pass

    return app.task(work, name=name, lazy=False, shared=False)


def test_celery_s_other_stack_of_tasks_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parents, "_task_stack", _FastLocalStack())

    assert not parents.has_local_stack(base)


@pytest.mark.parametrize(
    ("stack", "expected"),
    [((), None), ((False,), 0), ((True,), None), ((False, True), 0), ((False, True, False), 2)],
    ids=["no task", "a task", "a call", "a call in a task", "a task in a call in a task"],
)
@pytest.mark.parametrize("elsewhere", [False, True], ids=["alone", "beside another thread's task"])
def test_the_parent_of_a_task_is_the_one_that_celery_finds(
    stack: tuple[bool, ...], expected: int | None, elsewhere: bool
) -> None:
    app = Celery("app", set_as_current=False)
    DelayQ(app)
    tasks = [task_of(app, f"task-{place}") for place in range(len(stack))]
    stock = unchanged(base.get_current_worker_task)
    ours = parents.find_parent(base, stock)
    found: list[Any] = []

    def look() -> None:
        for task, is_call in zip(tasks, stack, strict=True):
            task.push_request(called_directly=is_call)
            _task_stack.push(task)
        try:
            found.append((ours(), stock()))
        finally:
            for task in tasks:
                _task_stack.pop()
                task.pop_request()
        found.append((ours(), stock()))

    if elsewhere:
        _task_stack.push(task_of(app, "elsewhere"))
    try:
        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        thread.join(TIMEOUT)
    finally:
        if elsewhere:
            _task_stack.pop()

    parent = None if expected is None else tasks[expected]
    assert found == [(parent, parent), (None, None)]
