"""What Celery does for each task that it sends is faster, and the results are Celery's."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from functools import reduce
from operator import or_
from typing import Any
from uuid import RFC_4122, UUID

import pytest
from celery import Celery
from celery._state import _task_stack
from celery.app import base
from celery.utils.collections import ConfigurationView
from celery.utils.threads import _FastLocalStack
from kombu.utils.objects import cached_property

from celery_delayq import DelayQ
from celery_delayq.integration.fast import parents, settings
from celery_delayq.integration.fast.properties import WithoutLock
from celery_delayq.integration.replace import Replace
from celery_delayq.utils.ids import new_id
from tests.support import TIMEOUT


def unchanged(function: Any) -> Any:
    """Return the function of Celery that ``DelayQ(app)`` may have replaced."""
    return getattr(function, "__wrapped__", function)


@pytest.mark.parametrize("prefix", ["", "CELERY"])
def test_settings_are_found_as_celery_finds_them(prefix: str) -> None:
    app = Celery("app", set_as_current=False, namespace=prefix or None)
    DelayQ(app)
    stock = unchanged(ConfigurationView.__getitem__)
    ours = (
        settings.finding_settings(ConfigurationView, stock)
        if settings.CELERY_LOOKS_BY_PLACE
        else stock
    )
    app.conf.update(task_ignore_result=True, own="a")

    names = ["own", "CELERY_IGNORE_RESULT", *app.conf]
    assert [ours(app.conf, name) for name in names] == [stock(app.conf, name) for name in names]
    with pytest.raises(KeyError):
        app.conf["unknown"]


@pytest.mark.parametrize(
    ("given", "namespace"),
    [
        ({"task_always_eager": True, "timezone": "Asia/Tokyo"}, None),
        ({"CELERY_ALWAYS_EAGER": True, "CELERY_TIMEZONE": "Asia/Tokyo"}, None),
        ({"CELERY_TASK_ALWAYS_EAGER": True, "CELERY_TIMEZONE": "Asia/Tokyo"}, "CELERY"),
    ],
    ids=["new names", "old names", "a namespace"],
)
@pytest.mark.parametrize("first", ["DelayQ", "settings"])
def test_the_lookup_that_loads_the_settings_finds_its_own(
    given: dict[str, Any], namespace: str | None, first: str
) -> None:
    app = Celery("app", broker="memory://", set_as_current=False)
    if first == "DelayQ":
        DelayQ(app)
    app.config_from_object(given, namespace=namespace)
    if first == "settings":
        DelayQ(app)

    found = [(app.conf.task_always_eager, app.conf.timezone) for _ in range(2)]

    assert found == [(True, "Asia/Tokyo")] * 2


def test_ids_are_random_uuids_of_every_variant() -> None:
    texts = [new_id() for _ in range(500)]
    ids = [UUID(text) for text in texts]

    assert [str(each) for each in ids] == texts

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
    ours = parents.finding_parent(base, stock)
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


class Owner:
    """Has a property that waits until it may be made."""

    def __init__(self) -> None:
        self.made: list[object] = []
        self.may_end = threading.Event()

    @cached_property
    def value(self) -> object:
        self.made.append(object())
        assert self.may_end.wait(TIMEOUT)
        return self.made[-1]


class Broken(AbstractContextManager[None]):
    """A lock that nobody may take."""

    def __enter__(self) -> None:
        raise AssertionError("the lock was taken")

    def __exit__(self, *_: object) -> None:
        pass


def test_a_cached_property_is_made_once_by_many_threads_and_read_without_a_lock() -> None:
    stock, change = Owner.value, Replace(target="owner.value", by=WithoutLock, why="test")
    lock, owner = stock.lock, Owner()
    found: list[object] = []
    change.make(owner=Owner)
    try:
        threads = [
            threading.Thread(target=lambda: found.append(owner.value), daemon=True)
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        owner.may_end.set()
        for thread in threads:
            thread.join(TIMEOUT)
        stock.lock = Broken()
        assert (found, owner.value, len(owner.made)) == ([owner.made[0]] * 4, owner.made[0], 1)

        owner.value = "own"
        assert owner.value == "own"
        del owner.value
        stock.lock = lock
        assert (owner.value, len(owner.made)) == (owner.made[-1], 2)
    finally:
        stock.lock = lock
        change.undo(owner=Owner)
    assert Owner.value is stock
