"""An app whose tasks write down what is bound around them, and OpenTelemetry's spans."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from typing import Any

from celery import chain, chord, group
from celery.exceptions import Ignore
from celery.utils.log import get_task_logger
from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.model.context import context, current_context
from tests.apps.settings import new_app
from tests.support import TIMEOUT

logger = get_task_logger(__name__)

#: Seconds until a retry or a child.
SOON = 0.2

app = new_app(
    "context",
    result_extended=True,
    worker_task_log_format="%(levelname)s <%(delayq_context)s> %(message)s",
)
delayq = DelayQ.of(app)


class TryAgain(Exception):
    """What a task is retried for by itself."""


def note(key: str, what: Any) -> None:
    """Append something to a list in Redis."""
    with Redis.from_url(app.conf.result_backend) as client:
        client.rpush(key, json.dumps(what))


@app.task(
    bind=True,
    name="look",
    autoretry_for=(TryAgain,),
    retry_kwargs={"max_retries": 1, "countdown": SOON},
    shared=False,
)
def look(self: Any, name: Any = "", do: str = "", more: dict[str, Any] | None = None) -> Any:
    """Write down what is bound, and *do* what comes to mind."""
    request = self.request
    note(
        "log",
        {
            "name": name,
            "retries": request.retries,
            "context": dict(current_context()),
            "parent": request.get("traceparent"),
            "eta": request.eta,
        },
    )
    logger.info("seen by %s", name)
    if do == "child":
        look.apply_async((f"child of {name}",), countdown=SOON)
        with context(**(more or {})):
            look.delay(f"other child of {name}")
    if do == "leave":
        context(left="behind").__enter__()
    if do == "canvas":
        done = look.si("then")
        chord([look.si("a"), chain(look.si("b"), look.si("c"))], done)()
    if do == "fail":
        raise RuntimeError("as told")
    if do == "ignore":
        raise Ignore
    if do == "die once" and request.deliveries == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if request.retries == 0:
        if do == "retry":
            raise self.retry(countdown=SOON)
        if do == "autoretry":
            raise TryAgain
        if do == "retry with":
            raise self.retry(countdown=SOON, context=more)
    return name


@app.task(name="failed", shared=False)
def failed(request: Any, *_: Any) -> None:
    """Write down what is bound around a callback of errors."""
    look.run("failed")


@app.task(name="told", shared=False)
def told(id: str) -> None:
    """Be a callback of errors that Celery sends as a task, since it takes the id alone."""
    look.run("told")


@app.task(bind=True, name="replacing", shared=False)
def replacing(self: Any) -> Any:
    """Put another task in its own place."""
    with context(step="replaced"):
        return self.replace(group(look.s("r1"), look.s("r2")) | look.si("r3"))


@app.task(name="meeting", shared=False)
def meeting(name: str, count: int) -> Any:
    """Look when so many of these tasks run at once."""
    before = dict(current_context())
    with Redis.from_url(app.conf.result_backend, socket_timeout=None) as client:
        if client.incr("met") == count:
            client.rpush("all met", *[""] * count)
        client.blpop(["all met"], timeout=TIMEOUT)
    with context(inner=name):
        logger.info("meeting of %s", name)
        note("log", {"name": name, "context": [before, dict(current_context())]})


def trace_to_redis(service: str, celery: bool = True) -> Any:
    """Have OpenTelemetry write spans to a list in Redis, those of *celery* too; return a tracer."""
    from opentelemetry.instrumentation.celery import CeleryInstrumentor
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

    class Exporter(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            for span in spans:
                own, parent = span.get_span_context(), span.parent
                found = {
                    "service": service,
                    "name": span.name,
                    "trace": f"{own.trace_id:032x}",
                    "id": f"{own.span_id:016x}",
                    "parent": None if parent is None else f"{parent.span_id:016x}",
                }
                note("spans", found)
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Exporter()))
    if celery:
        CeleryInstrumentor().instrument(tracer_provider=provider)
    return provider.get_tracer(service)


if os.environ.get("TRACED"):
    trace_to_redis("worker")
