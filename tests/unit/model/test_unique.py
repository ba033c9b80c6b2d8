"""The unique key of a call, from whatever a task has as ``unique_key``."""

from __future__ import annotations

from functools import partial, wraps
from typing import Any

import pytest
from celery import Celery, Task

from celery_delayq.errors import InvalidUnique
from celery_delayq.model import unique


def key_of_order(order_id: int, **_: Any) -> str:
    return f"order {order_id}"


class KeyOfOrder:
    """A callable object."""

    def __call__(self, order_id: int, **_: Any) -> str:
        return key_of_order(order_id)


class Method(Task):
    """A task class with a method."""

    prefix = "order"

    def unique_key(self, order_id: int, **_: Any) -> str:
        return f"{self.prefix} {order_id}"


def decorated(function: Any) -> Any:
    """Return a function that hides what another function takes."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


class Decorated(Task):
    """A task class with a decorated method."""

    prefix = "order"

    @decorated
    def unique_key(self, order_id: int, **_: Any) -> str:
        return f"{self.prefix} {order_id}"


class MethodOfTask(Task):
    """A task class with a method whose first parameter has another name."""

    prefix = "order"

    def unique_key(task, order_id: int, **_: Any) -> str:  # noqa: N805
        return f"{task.prefix} {order_id}"


class ClassMethod(Task):
    """A task class with a class method."""

    prefix = "order"

    @classmethod
    def unique_key(cls, order_id: int, **_: Any) -> str:
        return f"{cls.prefix} {order_id}"


class StaticMethod(Task):
    """A task class with a static method."""

    @staticmethod
    def unique_key(order_id: int, **_: Any) -> str:
        return key_of_order(order_id)


class Assigned(Task):
    """A task class with a function of the module."""

    unique_key = key_of_order


class Lambda(Task):
    """A task class with a lambda."""

    unique_key = lambda order_id, **_: key_of_order(order_id)  # noqa: E731


class AnyArguments(Task):
    """A task class with a function that takes any arguments."""

    unique_key = lambda *args, **_: key_of_order(*args)  # noqa: E731


class Derived(Method):
    """A task class whose base has a method."""

    prefix = "order"


#: The ways in which a task has a key; each gives ``order 42`` for the order 42.
WAYS: dict[str, dict[str, Any]] = {
    "template": {"unique_key": "order {order_id}"},
    "function": {"unique_key": key_of_order},
    "decorated": {"unique_key": decorated(key_of_order)},
    "lambda": {"unique_key": lambda order_id, **_: f"order {order_id}"},
    "lambda of any": {"unique_key": lambda *args, **_: key_of_order(*args)},
    "static": {"unique_key": staticmethod(key_of_order)},
    "object": {"unique_key": KeyOfOrder()},
    "partial": {"unique_key": staticmethod(partial(key_of_order, more=1))},
    "function with self": {
        "unique_key": lambda self, order_id, **_: f"order {order_id}{self.app and ''}"
    },
    **{
        f"class, {kind.__name__}": {"base": kind}
        for kind in (
            Method,
            MethodOfTask,
            Decorated,
            ClassMethod,
            StaticMethod,
            Assigned,
            Lambda,
            AnyArguments,
            Derived,
        )
    },
}


def ship(order_id: int, note: str = "") -> None:
    """Stand for any task."""


def ship_bound(self: Any, order_id: int, note: str = "") -> None:
    """Stand for any bound task."""


def key_of(task: Any, given: dict[str, Any], *args: Any, **kwargs: Any) -> str:
    rule = unique.rule_of(task.name, task, unique.options_of(task, given))
    assert rule is not None
    return rule.key_of(args, kwargs)


@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize("source", ["decorator", "annotation", "instance", "call"])
@pytest.mark.parametrize("way", WAYS)
def test_each_kind_of_key_gets_the_arguments_of_the_call(
    way: str, source: str, bound: bool
) -> None:
    options = WAYS[way]
    has_class, takes_self = "base" in options, way == "function with self"
    app = Celery("shop", broker="memory://", set_as_current=False)
    given: dict[str, Any] = {}
    if source == "annotation" and not has_class:
        app.conf.task_annotations = {"shop.ship": options}
        options = {}
    made = app.task(
        name="shop.ship",
        shared=False,
        bind=bound,
        **(options if source in ("decorator", "annotation") or has_class else {}),
    )(ship_bound if bound else ship)
    app.finalize()
    task = app.tasks[made.name]
    if not has_class and not takes_self:
        key = options.get("unique_key")
        key = key.__func__ if isinstance(key, staticmethod) else key
        if source == "instance":
            task.unique_key = key
        elif source == "call":
            given["unique_key"] = key
    elif takes_self and source in ("instance", "call"):
        return  # nobody gives it the task

    assert key_of(task, given, 42) == "sshop.ship:order%2042"
    if "any" not in way.lower():
        assert key_of(task, given, order_id=42, note="x") == "sshop.ship:order%2042"
    else:
        with pytest.raises(InvalidUnique, match="failed for"):
            key_of(task, given, order_id=42)


def remind(task: Any, order_id: int) -> None:
    """Stand for any bound task."""


@pytest.mark.parametrize("name", ["self", "task", "other"])
def test_a_function_of_a_bound_task_gets_the_task_under_the_same_name(name: str) -> None:
    """Without ``bind=True``, ``task`` is an argument as any other."""
    app = Celery("shop", broker="memory://", set_as_current=False)
    functions: dict[str, Any] = {
        "self": lambda self, order_id: f"{self.name} {order_id}",
        "task": lambda task, order_id: f"{getattr(task, 'name', task)} {order_id}",
        "other": lambda other, order_id: f"{other} {order_id}",
    }
    options = {"shared": False, "unique_key": functions[name]}
    bound = app.task(name="bound", bind=True, **options)(remind)
    plain = app.task(name="plain", **options)(remind)
    app.finalize()

    def key(task: str, *args: Any) -> str:
        return key_of(app.tasks[task], {}, *args)

    assert (bound.name, plain.name) == ("bound", "plain")
    if name == "other":
        assert key("bound", "a", 7) == "sbound:a%207"
    else:
        assert key("bound", 7) == "sbound:bound%207"
    if name == "self":
        assert key("plain", 7) == "splain:plain%207"
    else:
        assert key("plain", "a", 7) == "splain:a%207"
