"""Apps that send to memory, and tasks that run as in a worker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery, signals
from celery.app.trace import build_tracer

from celery_delayq import DelayQ
from celery_delayq.model.context import bound

Send = Callable[..., Any]


@pytest.fixture(autouse=True)
def _nothing_stays_bound() -> Iterator[None]:
    assert bound() is None
    yield
    assert bound() is None


class Messages(list[dict[str, Any]]):
    """The headers and properties of what was sent."""

    def carried(self) -> list[dict[str, Any]]:
        """Return the values that each message carries, and forget it."""
        texts = [each.get("properties", {}).get("delayq", {}).get("context", "{}") for each in self]
        self.clear()
        return [json.loads(text) for text in texts]

    def parents(self) -> list[Any]:
        """Return the traceparent of each message, and forget it."""
        found = [each["headers"].get("traceparent") for each in self]
        self.clear()
        return found


@pytest.fixture
def sent() -> Iterator[Messages]:
    messages = Messages()

    def note(headers: Any, properties: Any, **_: Any) -> None:
        messages.append({"headers": dict(headers), "properties": dict(properties)})

    signals.before_task_publish.connect(note)
    yield messages
    signals.before_task_publish.disconnect(note)


def new_app() -> Celery:
    """Return an app whose messages are in nobody's way: there is one memory for all tests."""
    app = Celery("app", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.task_default_queue = "context"
    DelayQ(app)
    return app


@pytest.fixture
def app() -> Celery:
    return new_app()


@pytest.fixture
def delayq(app: Celery) -> DelayQ:
    return DelayQ.of(app)


@pytest.fixture
def send(app: Celery) -> Send:
    def send(**options: Any) -> Any:
        return app.send_task("any", **options)

    return send


@pytest.fixture
def run(app: Celery) -> Callable[..., Any]:
    """Run a function as a task, as a worker does with a message that carries these values."""

    def run(function: Any, values: Any = None, *, bind: bool = False, **request: Any) -> Any:
        name = f"task {len(app.tasks)}"
        function.__name__ = "handler"  # Celery makes no task of <lambda>
        task = app.task(name=name, bind=bind, shared=False)(function)
        text = values if values is None or isinstance(values, str) else json.dumps(values)
        properties = {} if text is None else {"delayq": {"context": text}}
        request = {"id": "1", "delivery_info": {}, "properties": properties, **request}
        tracer = build_tracer(name, app.tasks[task.name], app=app)
        return tracer("1", (), {}, request)

    return run
