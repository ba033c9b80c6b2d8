"""What Celery does for each task that it sends, in less time: the results are Celery's."""

from __future__ import annotations

import threading
from functools import reduce
from operator import or_
from typing import Any
from uuid import RFC_4122, UUID

import pytest
from celery import Celery
from celery._state import _task_stack
from celery.app import base
from celery.utils.collections import ConfigurationView
from kombu.utils.objects import cached_property

from celery_delayq import DelayQ
from celery_delayq.integration.replace import Replace
from celery_delayq.integration.send_task import WithoutLock, new_id


@pytest.mark.parametrize("prefix", ["", "CELERY"])
def test_settings_are_found_as_celery_finds_them(prefix: str) -> None:
    app = Celery("app", set_as_current=False, namespace=prefix or None)
    DelayQ(app)
    ours: Any = ConfigurationView.__getitem__
    stock = ours.__wrapped__
    app.conf.update(task_ignore_result=True, own="a")

    names = ["own", "CELERY_IGNORE_RESULT", *app.conf]
    assert [ours(app.conf, name) for name in names] == [stock(app.conf, name) for name in names]
    with pytest.raises(KeyError):
        app.conf["unknown"]


def test_ids_are_random_uuids_of_every_variant() -> None:
    ids = [UUID(new_id()) for _ in range(500)]

    assert {(each.version, each.variant) for each in ids} == {(4, RFC_4122)}
    assert {str(each)[19] for each in ids} == set("89ab")
    assert len({*ids}) == 500
    # Each bit but the six that are fixed.
    assert reduce(or_, (each.int for each in ids)) == (1 << 128) - 1 - (0xB << 76) - (1 << 62)


def task_of(app: Celery, name: str) -> Any:
    """Return a task that no other app gets."""

    def work() -> None:
        pass

    return app.task(work, name=name, lazy=False, shared=False)


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
    ours: Any = base.get_current_worker_task
    found: list[Any] = []

    def look() -> None:
        for task, is_call in zip(tasks, stack, strict=True):
            task.push_request(called_directly=is_call)
            _task_stack.push(task)
        try:
            found.append((ours(), ours.__wrapped__()))
        finally:
            for task in tasks:
                _task_stack.pop()
                task.pop_request()
        found.append((ours(), ours.__wrapped__()))

    if elsewhere:
        _task_stack.push(task_of(app, "elsewhere"))
    try:
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    finally:
        if elsewhere:
            _task_stack.pop()

    parent = None if expected is None else tasks[expected]
    assert found == [(parent, parent), (None, None)]


def test_a_cached_property_without_a_lock_is_made_once_by_many_threads() -> None:
    made: list[object] = []

    class Owner:
        @cached_property
        def value(self) -> object:
            made.append(object())
            barrier.wait()  # the first thread is in here while the others ask
            return made[-1]

    barrier = threading.Barrier(2, timeout=10)
    Replace(target="owner.value", by=WithoutLock, why="test").make(owner=Owner)
    owner = Owner()
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(owner.value)) for _ in range(4)]
    for thread in threads:
        thread.start()
    barrier.wait()
    for thread in threads:
        thread.join()

    assert (found, len(made)) == ([made[0]] * 4, 1)
