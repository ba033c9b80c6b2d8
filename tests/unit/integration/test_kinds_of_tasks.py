"""A task of each kind stays what it is: ``inspect`` sees what it sees without the extension."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from celery import Celery, Task

from celery_delayq import DelayQ
from celery_delayq.errors import TaskReturnedFalse
from celery_delayq.integration import install
from tests.support.celery_changes import seen


def plain(x: int, y: int = 2, *more: str, key: str = "k", **rest: float) -> int:
    """Add."""
    return x + y


def bound(self: Any, x: int) -> Any:
    """Return the request."""
    return self.request


async def coroutine(x: int, y: int = 2) -> int:
    """Add later."""
    return x + y


async def bound_coroutine(self: Any, x: int) -> int:
    """Return it later."""
    return x


def generator(x: int) -> Iterator[int]:
    """Yield some."""
    yield from range(x)


async def async_generator(x: int) -> AsyncIterator[int]:
    """Yield some later."""
    for each in range(x):
        yield each


@functools.wraps(plain)
def decorated(*args: Any, **kwargs: Any) -> Any:
    """Stand for a function with a decorator of others."""
    return plain(*args, **kwargs)


@functools.wraps(coroutine)
async def decorated_coroutine(*args: Any, **kwargs: Any) -> Any:
    """Stand for one with a decorator of others."""
    return await coroutine(*args, **kwargs)


KINDS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "plain": (plain, {}),
    "bound": (bound, {"bind": True}),
    "autoretry": (plain, {"autoretry_for": (OSError,)}),
    "autoretry bound": (bound, {"autoretry_for": (OSError,), "bind": True}),
    "autoretry coroutine": (coroutine, {"autoretry_for": (OSError,)}),
    "coroutine": (coroutine, {}),
    "bound coroutine": (bound_coroutine, {"bind": True}),
    "generator": (generator, {}),
    "async generator": (async_generator, {}),
    "decorated": (decorated, {}),
    "decorated coroutine": (decorated_coroutine, {}),
}
#: What tasks have that is replaced, and the two ways to call them.
ATTRIBUTES = sorted(
    {each.target.removeprefix("task.") for each in install.TASK} | {"apply_async", "__call__"}
)


class Own(Task):
    """A task with a class of its own."""

    name = "own"

    def run(self, x: int, *, y: int = 1) -> int:
        """Add."""
        return x + y

    def on_failure(self, exc: Any, task_id: Any, args: Any, kwargs: Any, einfo: Any) -> None:
        """Do nothing."""


def tasks_of(app: Celery) -> dict[str, Any]:
    """Give an app a task of each kind."""
    for name, (function, options) in KINDS.items():
        app.task(name=name, shared=False, **options)(function)
    app.register_task(Own())
    app.finalize()
    return {name: app.tasks[name] for name in (*KINDS, "own")}


@pytest.fixture
def ours() -> dict[str, Any]:
    app = Celery("ours", broker="memory://", set_as_current=False)
    DelayQ(app)
    return tasks_of(app)


@pytest.mark.parametrize("kind", [*KINDS, "own"])
def test_inspect_sees_what_it_sees_on_stock(kind: str, ours: dict[str, Any]) -> None:
    stock = tasks_of(Celery("stock", broker="memory://", set_as_current=False))
    for name in ATTRIBUTES:
        assert hasattr(ours[kind], name) == hasattr(stock[kind], name)
        if hasattr(stock[kind], name):
            found, expected = getattr(ours[kind], name), getattr(stock[kind], name)
            assert seen(found) == seen(expected), name
            assert inspect.getsource(found) == inspect.getsource(expected)
            if name in ("run", "_orig_run"):
                arguments = (ours[kind], 1) if inspect.ismethod(found) else (1,)
                assert by_name(found, *arguments[-1:]) == by_name(expected, *arguments[-1:])


def by_name(function: Callable[..., Any], *args: Any) -> dict[str, Any]:
    """Return the arguments of a call by name, as celery-once does."""
    called = inspect.getcallargs(function, *args)
    return {name: value for name, value in called.items() if not isinstance(value, Task)}


# -- what it does, each kind run by whoever runs it -----------------------------------------------


class Failed(Exception):
    """What the tasks here raise."""


def run(kind: str, task: Any) -> Any:
    """Run a task as a pool or a task class does that knows its kind."""
    function = task.run
    if inspect.iscoroutinefunction(function):
        return asyncio.run(function(1))
    if inspect.isasyncgenfunction(function):

        async def take() -> list[Any]:
            return [each async for each in function(1)]

        return asyncio.run(take())
    return [*function(1)] if inspect.isgeneratorfunction(function) else function(1)


def fail(x: int) -> Any:
    """Fail."""
    raise Failed


async def fail_later(x: int) -> Any:
    """Fail."""
    raise Failed


def fail_in_between(x: int) -> Iterator[int]:
    """Fail after the first item."""
    yield x
    raise Failed


async def fail_in_between_later(x: int) -> AsyncIterator[int]:
    """Fail after the first item."""
    yield x
    raise Failed


FAILING = {
    "plain": fail,
    "coroutine": fail_later,
    "generator": fail_in_between,
    "async generator": fail_in_between_later,
}


@pytest.mark.parametrize("kind", FAILING)
def test_a_failure_of_each_kind_is_retried_by_the_policy(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Celery("ours", broker="memory://", set_as_current=False)
    DelayQ(app)
    app.task(name=kind, shared=False, retry_for=(Failed,), max_retries=3)(FAILING[kind])
    task = app.tasks[kind]
    asked: list[Exception] = []

    class Tried(Exception):
        pass

    def note(*, exc: Exception) -> Exception:
        asked.append(exc)
        return Tried()

    monkeypatch.setattr(task, "retry", note)
    task.push_request(id="1", retries=0, called_directly=False)
    try:
        with pytest.raises(Tried):
            run(kind, task)
    finally:
        task.pop_request()

    assert [type(each) for each in asked] == [Failed]


def say_no(x: int) -> bool:
    """Return False."""
    return False


async def say_no_later(x: int) -> bool:
    """Return False."""
    return False


@pytest.mark.parametrize("function", [say_no, say_no_later])
def test_false_is_a_failure_of_a_coroutine_too(function: Callable[..., Any]) -> None:
    app = Celery("ours", broker="memory://", set_as_current=False)
    DelayQ(app)
    app.task(name="no", shared=False, false_is_failure=True)(function)
    task = app.tasks["no"]
    task.push_request(id="1", retries=0, called_directly=False)
    try:
        with pytest.raises(TaskReturnedFalse):
            run("no", task)
    finally:
        task.pop_request()
