"""Context providers capture values at sending, and bind them around the handler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

import pytest
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.errors import ConfigError, InvalidContext
from celery_delayq.model.context import context, current_context
from tests.unit.integration.conftest import Messages, Send, new_app

tenant: ContextVar[Any] = ContextVar("tenant", default=None)


@contextmanager
def as_tenant(value: Any) -> Iterator[None]:
    token = tenant.set(value)
    yield
    tenant.reset(token)


def test_a_provider_is_asked_when_a_task_is_sent_and_told_when_it_runs(
    delayq: DelayQ, send: Send, sent: Messages, run: Callable[..., Any]
) -> None:
    delayq.add_context_provider("tenant", tenant.get, as_tenant)
    with as_tenant("acme"), context(user="ada"):
        send()
        send(context={"order": 17})
        send(context=False)
    send()
    carried = sent.carried()
    assert carried == [
        {"user": "ada", "tenant": "acme"},
        {"user": "ada", "tenant": "acme", "order": 17},
        {},
        {},
    ]

    def handler(self: Any) -> None:
        assert tenant.get() == current_context()["tenant"] == "acme"
        send()
        with as_tenant("other"):
            send()
        with as_tenant(None):
            send()
            raise self.retry()

    run(handler, carried[0], bind=True)

    assert tenant.get() is None
    assert sent.carried() == [
        {"user": "ada", "tenant": "acme"},
        {"user": "ada", "tenant": "other"},
        {"user": "ada"},
        {"user": "ada", "tenant": "acme"},
    ]


def test_what_nobody_binds_is_in_the_context_and_goes_on(
    delayq: DelayQ, send: Send, sent: Messages, run: Callable[..., Any]
) -> None:
    delayq.add_context_provider("tenant", tenant.get)
    run(send, {"tenant": "acme"})
    assert sent.carried() == [{"tenant": "acme"}]


@pytest.mark.parametrize("value", [b"no JSON", "x" * 5000, LookupError("broken")])
def test_a_provider_that_fails_stops_no_sending(
    delayq: DelayQ, send: Send, sent: Messages, caplog: pytest.LogCaptureFixture, value: Any
) -> None:
    def capture() -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    delayq.add_context_provider("broken", capture)
    delayq.add_context_provider("good", lambda: 1)
    with context(user="ada"):
        send()

    assert sent.carried() == [{"user": "ada", "good": 1}]
    ours = [
        each for each in caplog.records if each.name == "celery_delayq.integration.context"
    ]  # not kombu's
    assert [record.getMessage() for record in ours] == [
        "The context provider 'broken' failed; a task is sent without it"
    ]


@contextmanager
def failing_at_the_end(value: Any) -> Iterator[None]:
    yield
    raise LookupError


@contextmanager
def failing_at_once(value: Any) -> Iterator[None]:
    raise LookupError
    yield


@pytest.mark.parametrize(
    ("bind", "said"),
    [
        (failing_at_once, "a task runs without it"),
        (lambda value: value, "a task runs without it"),
        (failing_at_the_end, "failed at the end of a task"),
    ],
)
def test_a_provider_that_fails_stops_no_task(
    delayq: DelayQ, run: Callable[..., Any], caplog: pytest.LogCaptureFixture, bind: Any, said: str
) -> None:
    delayq.add_context_provider("tenant", tenant.get, as_tenant)
    delayq.add_context_provider("broken", lambda: None, bind)
    seen = []
    done = run(lambda: seen.append(tenant.get()), {"broken": 1, "tenant": "acme"})

    assert (seen, done.info, tenant.get()) == (["acme"], None, None)
    assert said in caplog.text


def test_providers_end_in_the_other_order_after_a_failed_task_too(
    delayq: DelayQ, run: Callable[..., Any]
) -> None:
    told = []

    def telling(name: str) -> Callable[[Any], AbstractContextManager[None]]:
        @contextmanager
        def bind(value: Any) -> Iterator[None]:
            told.append(f"{name} begins with {value}")
            yield
            told.append(f"{name} ends")

        return bind

    def handler() -> None:
        told.append("the task fails")
        raise LookupError

    for name in ("a", "b"):
        delayq.add_context_provider(name, lambda: None, telling(name))
    run(handler, {"b": 2, "a": 1})

    assert told == ["a begins with 1", "b begins with 2", "the task fails", "b ends", "a ends"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("tenant", tenant.get), "there is a context provider 'tenant' already"),
        (("traceparent", tenant.get), "a header of its own"),
        (("a b", tenant.get), "expected letters"),
        ((5, tenant.get), "expected letters"),
        (("other", "acme"), "expected a function"),
        (("other", tenant.get, "acme"), "expected a function"),
    ],
)
def test_a_provider_that_is_none_is_refused(delayq: DelayQ, arguments: Any, said: str) -> None:
    delayq.add_context_provider("tenant", tenant.get)
    with pytest.raises(ConfigError, match=said):
        delayq.add_context_provider(*arguments)


def test_the_name_of_a_provider_is_taken(delayq: DelayQ, send: Send) -> None:
    delayq.add_context_provider("tenant", tenant.get)
    with pytest.raises(InvalidContext, match="context tenant: what a context provider"):
        delayq.context(tenant="acme")
    with pytest.raises(InvalidContext, match="context tenant: what a context provider"):
        send(context={"tenant": "acme"})


def test_all_extension_objects_of_an_app_have_its_providers_and_no_other_app_has(
    app: Celery, sent: Messages
) -> None:
    early = DelayQ()
    early.add_context_provider("early", lambda: 1)
    early.init_app(app)
    DelayQ(app).add_context_provider("late", lambda: 2)
    early.add_context_provider("latest", lambda: 3)

    for each in (app, new_app()):
        each.send_task("any")
    assert sent.carried() == [{"early": 1, "late": 2, "latest": 3}, {}]
