"""Traces are what W3C says, and OpenTelemetry's where the app has it."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from celery_delayq.model.context import context, current_context
from celery_delayq.model.context.trace_context import Trace, of_opentelemetry

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE_ID}-{SPAN_ID}-01"
#: The most members that a ``tracestate`` may have.
MEMBERS = ",".join(f"k{n}=v" for n in range(32))


@pytest.mark.parametrize(
    ("parent", "valid"),
    [
        (PARENT, True),
        (PARENT[:-2] + "00", True),
        ("cc" + PARENT[2:], True),
        ("cc" + PARENT[2:] + "-what-comes", True),
        (PARENT + "-more", False),
        ("ff" + PARENT[2:], False),
        (PARENT.upper(), False),
        (f"00-{'0' * 32}-{SPAN_ID}-01", False),
        (f"00-{TRACE_ID}-{'0' * 16}-01", False),
        (f"00-{TRACE_ID}-{SPAN_ID}", False),
        (f"00-{TRACE_ID[1:]}-{SPAN_ID}-01", False),
        ("", False),
        ("x" * 10_000, False),
    ],
)
def test_a_traceparent_is_valid_as_opentelemetry_says(parent: str, valid: bool) -> None:
    span = get_current_span(TraceContextTextMapPropagator().extract({"traceparent": parent}))

    assert (Trace.of({"traceparent": parent}) is not None) is valid
    assert span.get_span_context().is_valid is valid


@pytest.mark.parametrize("parent", [f"{PARENT}\n", f" {PARENT}", None, 5, [PARENT], b"x"])
def test_what_is_no_traceparent_counts_as_not_there(parent: Any) -> None:
    assert Trace.of({"traceparent": parent}) is None


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("congo=t61rcWkgMzE", "congo=t61rcWkgMzE"),
        ("rojo=00f0, congo=t61r ,,tenant@vendor=x y", "rojo=00f0,congo=t61r,tenant@vendor=x y"),
        (MEMBERS, MEMBERS),
        *((wrong, "") for wrong in (f"{MEMBERS},k32=v", "k=" + "v" * 511, "no value", "k=ü")),
        *((wrong, "") for wrong in ("k=v\nforged: header", 5, None)),
    ],
)
def test_a_tracestate_is_kept_when_it_is_valid(given: Any, kept: str) -> None:
    assert Trace.of({"traceparent": PARENT, "tracestate": given}) == (PARENT, kept)
    assert Trace.of({"tracestate": given}) is None


def test_a_bound_trace_is_part_of_the_context() -> None:
    with context(traceparent=PARENT, tracestate="congo=t61r"):
        assert current_context() == {"traceparent": PARENT, "tracestate": "congo=t61r"}
        with context(user="ada", traceparent="of nobody", tracestate="none"):
            # It came from outside, which is no reason to fail.
            trace = {"traceparent": PARENT, "tracestate": "congo=t61r"}
            assert current_context() == {"user": "ada", **trace}
    with context(tracestate="congo=t61r"):
        assert current_context() == {}


def test_opentelemetry_goes_on_with_a_bound_trace_where_it_has_none() -> None:
    tracer = TracerProvider().get_tracer("tests")
    with context(traceparent=PARENT, tracestate="congo=t61r"):
        assert of_opentelemetry() == (PARENT, "congo=t61r")
        with context(user="ada"), tracer.start_as_current_span("inner") as span:
            assert f"{span.get_span_context().trace_id:032x}" == TRACE_ID
    assert of_opentelemetry() is None

    with tracer.start_as_current_span("its own") as span, context(traceparent=PARENT):
        assert get_current_span() is span
    assert of_opentelemetry() is None


def test_opentelemetry_is_not_asked_where_nobody_has_imported_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with TracerProvider().get_tracer("tests").start_as_current_span("span"):
        assert of_opentelemetry() is not None
        monkeypatch.delitem(sys.modules, "opentelemetry.trace")
        assert of_opentelemetry() is None
        with context(traceparent=PARENT):
            assert current_context() == {"traceparent": PARENT}
    assert "opentelemetry.trace" not in sys.modules


def test_a_half_imported_opentelemetry_costs_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("opentelemetry.trace", "opentelemetry.context"):
        monkeypatch.setitem(sys.modules, name, type(sys)(name))
    assert of_opentelemetry() is None
    with context(traceparent=PARENT):
        assert current_context() == {"traceparent": PARENT}
