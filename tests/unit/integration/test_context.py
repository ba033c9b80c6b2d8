"""What is bound goes with each message, and is bound again around its handler and nowhere else."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from celery import Celery, signals
from celery.exceptions import Ignore, Reject
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from celery_delayq.errors import ConfigError, InvalidContext
from celery_delayq.model.context import MAX_BYTES, context, current_context
from tests.unit.integration.conftest import Messages, Send

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-11111111111111111111111111111111-2222222222222222-00"


# -- sending --------------------------------------------------------------------------------------


def test_a_message_carries_what_is_bound_when_it_is_sent(send: Send, sent: Messages) -> None:
    send()
    with context(user="ada", roles=["reader"]):
        send()
        with context(user=None, order=17):
            send(countdown=60)
    with context():
        send()

    assert sent.carried() == [
        {},
        {"user": "ada", "roles": ["reader"]},
        {"roles": ["reader"], "order": 17},
        {},
    ]


def test_nothing_is_added_to_a_message_where_nothing_is_bound(send: Send, sent: Messages) -> None:
    send()
    with context():
        send(context={})
    assert [message["properties"].keys() for message in sent] == [
        {"correlation_id", "reply_to"},
        {"correlation_id", "reply_to"},
    ]
    assert sent.parents() == [None, None]


def test_an_option_counts_for_one_call(send: Send, sent: Messages, app: Celery) -> None:
    with context(user="ada", order=17):
        send(context={"user": "bob", "order": None})
        send(context={})
        send(context=None)
        send(context=False)
        app.signature("any").set(context={"order": 18}).apply_async()
        assert current_context() == {"user": "ada", "order": 17}
    send(context={"user": "bob"})

    assert sent.carried() == [
        {"user": "bob"},
        {"user": "ada", "order": 17},
        {"user": "ada", "order": 17},
        {},
        {"user": "ada", "order": 18},
        {"user": "bob"},
    ]


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("ada", "expected a mapping such as"),
        (True, "expected a mapping such as"),
        ([("user", "ada")], "expected a mapping such as"),
        ({"user": b"ada"}, "context user=b'ada': expected JSON"),
        ({"a b": 1}, "context name 'a b'"),
        ({"user": "x" * MAX_BYTES}, "expected at most 4096 bytes"),
    ],
)
def test_an_option_that_is_no_context_is_refused_at_the_call(
    send: Send, sent: Messages, option: Any, said: str
) -> None:
    with pytest.raises(InvalidContext, match=said):
        send(context=option)
    assert sent == []


def test_an_option_that_is_too_large_with_what_is_bound_is_refused(send: Send) -> None:
    with context(one="x" * 2100), pytest.raises(InvalidContext, match="expected at most 4096"):
        send(context={"two": "x" * 2100})


def test_messages_of_protocol_1_carry_nothing_and_say_so_when_asked(
    app: Celery, send: Send, sent: Messages
) -> None:
    app.conf.task_protocol = 1
    with context(user="ada", traceparent=PARENT):
        send()
        send(context=False)
    assert sent.parents() == [None, None]
    with pytest.raises(ConfigError, match="any: context needs task_protocol 2"):
        send(context={"user": "ada"})


def test_a_trace_goes_into_headers(send: Send, sent: Messages) -> None:
    with context(traceparent=PARENT, tracestate="congo=t61r", user="ada"):
        send()
        send(context={"traceparent": OTHER})
        send(context={"traceparent": None})
        send(context=False)
        send(headers={"traceparent": OTHER})
        send(headers={"mine": 1})

    assert [message["headers"].get("tracestate") for message in sent] == [
        "congo=t61r",
        None,
        None,
        None,
        None,
        "congo=t61r",
    ]
    assert sent[-1]["headers"]["mine"] == 1
    assert "traceparent" not in sent[0]["properties"]["delayq"]["context"]
    assert sent.parents() == [PARENT, OTHER, None, None, OTHER, PARENT]


def test_the_current_span_of_opentelemetry_goes_before_what_is_bound(
    send: Send, sent: Messages
) -> None:
    tracer = TracerProvider().get_tracer("tests")
    with tracer.start_as_current_span("span"), context(traceparent=PARENT):
        send()
        send(context={"traceparent": OTHER})
        send(context=False)
        theirs: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(theirs)

    assert sent.parents() == [theirs["traceparent"], OTHER, None]


# -- running --------------------------------------------------------------------------------------


def test_the_handler_has_what_its_message_carries_and_nothing_else(
    run: Callable[..., Any], send: Send, sent: Messages
) -> None:
    seen = []

    def handler() -> None:
        seen.append(dict(current_context()))
        send()
        with context(order=17):
            send()

    with context(here="of the worker"):
        run(handler, {"user": "ada"}, traceparent=PARENT, tracestate="congo=t61r")
        run(handler)
        assert current_context() == {"here": "of the worker"}

    assert seen == [{"user": "ada", "traceparent": PARENT, "tracestate": "congo=t61r"}, {}]
    assert [message["headers"].get("traceparent") for message in sent] == [
        PARENT,
        PARENT,
        None,
        None,
    ]
    assert sent.carried() == [
        {"user": "ada"},
        {"user": "ada", "order": 17},
        {},
        {"order": 17},
    ]


@pytest.mark.parametrize("error", [None, ValueError, Ignore, Reject, SystemExit])
def test_nothing_stays_after_a_task_however_it_ends(
    run: Callable[..., Any], error: type[BaseException] | None
) -> None:
    def handler() -> None:
        context(left="behind").__enter__()
        if error is not None:
            raise error

    def run_it() -> None:
        with suppress(Reject, SystemExit):
            run(handler, {"user": "ada"})

    run_it()
    assert current_context() == {}
    with context(here=True):
        run_it()
        assert current_context() == {"here": True}


def test_others_that_fail_before_a_task_change_nothing(run: Callable[..., Any]) -> None:
    called = []

    def fail(signal: Any, **_: Any) -> None:
        called.append(signal)
        raise LookupError

    seen = []
    both = [signals.task_prerun, signals.task_postrun]
    for signal in both:
        signal.connect(fail)
        signal.receivers.insert(0, signal.receivers.pop())
    try:
        run(lambda: seen.append(dict(current_context())), {"user": "ada"})
    finally:
        for signal in both:
            signal.disconnect(fail)
    assert (called, seen) == (both, [{"user": "ada"}])


def test_a_task_whose_end_was_not_told_leaves_nothing_to_the_next(run: Callable[..., Any]) -> None:
    seen = []

    def look() -> None:
        seen.append(dict(current_context()))

    def look_and_tell_nobody() -> None:
        look()
        signals.task_postrun.receivers.clear()

    receivers = list(signals.task_postrun.receivers)
    try:
        run(look_and_tell_nobody, {"user": "ada"})
        assert current_context() == {"user": "ada"}
    finally:
        signals.task_postrun.receivers[:] = receivers
    run(look)
    run(look, {"user": "bob"})

    assert seen == [{"user": "ada"}, {}, {"user": "bob"}]


def test_an_eager_task_has_what_is_bound_where_it_is_called(
    run: Callable[..., Any], app: Celery
) -> None:
    @app.task(name="look", shared=False)
    def look() -> Any:
        return dict(current_context())

    with context(user="ada"):
        assert look.apply().get() == {"user": "ada"}
        assert current_context() == {"user": "ada"}

    def handler() -> None:
        with context(order=17):
            assert look.apply().get() == {"user": "bob", "order": 17}
        assert current_context() == {"user": "bob"}

    assert run(handler, {"user": "bob"}).info is None


@pytest.mark.parametrize(
    "given", ['{"a b": 1}', "[]", "NaN", "", 17, {"user": "ada"}, json.dumps({"user": "x" * 5000})]
)
def test_a_context_that_cannot_be_read_is_reported_and_left_out(
    run: Callable[..., Any], caplog: pytest.LogCaptureFixture, given: Any
) -> None:
    seen = []
    properties = {"delayq": {"context": given}}
    run(lambda: seen.append(dict(current_context())), properties=properties)

    assert seen == [{}]
    [warning] = caplog.records
    assert warning.levelno == logging.WARNING
    assert "['1'] came with a context that cannot be read, and runs without" in warning.getMessage()
    assert len(warning.getMessage()) < 300


def test_what_a_message_carries_becomes_no_attribute(run: Callable[..., Any]) -> None:
    values = {"id": "forged", "levelname": "forged", "args": "forged", "retries": 99}
    records = []

    def handler(self: Any) -> None:
        assert (self.request.id, self.request.retries) == ("1", 0)
        assert "levelname" not in vars(self.request)
        records.append(logging.makeLogRecord({}))
        assert current_context() == values

    assert run(handler, values, bind=True).info is None
    assert records[0].levelname != "forged"
    assert vars(records[0])["delayq_context"] == "id=forged levelname=forged args=forged retries=99"


def test_a_retry_has_what_the_message_of_its_task_had(
    run: Callable[..., Any], sent: Messages
) -> None:
    def handler(self: Any) -> None:
        with context(user="of the handler", step=1):
            self.apply_async()
            raise self.retry(countdown=60)

    def with_an_option(self: Any) -> None:
        raise self.retry(countdown=60, context={"attempt": "second"})

    run(handler, {"user": "ada"}, bind=True, traceparent=PARENT)
    assert [message["headers"]["traceparent"] for message in sent] == [PARENT, PARENT]
    assert sent.carried() == [{"user": "of the handler", "step": 1}, {"user": "ada"}]

    run(with_an_option, {"user": "ada"}, bind=True)
    run(with_an_option, bind=True)
    assert sent.carried() == [{"user": "ada", "attempt": "second"}, {"attempt": "second"}]
