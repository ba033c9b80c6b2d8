"""A trace goes through the schedule, through retries and through workers that know none of it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from celery import Celery
from opentelemetry.sdk.trace import TracerProvider
from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.schedule.items import Item
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.conftest import stored
from tests.support import TIMEOUT
from tests.support.context import ContextScene
from tests.support.scene import StartWorker

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"


@pytest.fixture
def scene(app: Celery, delayq_redis: RedisUnderTest, delayq_worker: StartWorker) -> ContextScene:
    return ContextScene(delayq_redis, app, delayq_worker)


def test_a_span_without_instrumentation_goes_into_headers(
    app: Celery, delayq: DelayQ, redis: Redis
) -> None:
    """As also where signals are left out for speed."""
    add = app.tasks["tasks.add"]
    with TracerProvider().get_tracer("tests").start_as_current_span("request") as span:
        add.apply_async((1, 1), countdown=60)
        delayq.schedule_many([Item((n, n), countdown=90) for n in range(3)], task=add)
        own = span.get_span_context()

    for message in stored(redis):
        assert message["headers"]["traceparent"].startswith(
            f"00-{own.trace_id:032x}-{own.span_id:016x}-"
        )


def publish(scene: ContextScene, code: str) -> None:
    """Run *code* in a process of its own, which is traced by OpenTelemetry."""
    script = (
        "from tests.apps.context_tasks import *\n"
        "from celery_delayq.schedule.items import Item\n"
        "tracer = trace_to_redis('publisher')\n"
    )
    conf = scene.app.conf
    env = {"CELERY_BROKER_URL": conf.broker_url, "CELERY_RESULT_BACKEND": conf.result_backend}
    command = [sys.executable, "-c", script + code]
    subprocess.run(command, check=True, timeout=TIMEOUT, env={**os.environ, **env})


class Spans:
    """A trace as a tree."""

    def __init__(self, found: list[dict[str, Any]]) -> None:
        self._by_id = {span["id"]: span for span in found}
        self.traces = {span["trace"] for span in found}

    def paths(self) -> list[str]:
        """Return the names from the root to each span, sorted."""
        return sorted(self._path(span) for span in self._by_id.values())

    def _path(self, span: dict[str, Any]) -> str:
        name = f"{span['service'][0]}:{span['name']}"
        parent = self._by_id.get(span["parent"])
        if parent is None:
            return f"{span['parent'] or ''}>{name}"
        return f"{self._path(parent)} > {name}"


REQUEST = "with tracer.start_as_current_span('request'):\n    "
SENT = "> p:apply_async/look"


RUN = "w:run/look"
#: What runs sends another task.
TWICE = [RUN, f"{RUN} > w:apply_async/look", f"{RUN} > w:apply_async/look > {RUN}"]


@pytest.mark.parametrize("pool", ["threads", "prefork"])
@pytest.mark.parametrize(
    ("call", "below"),
    [
        ("look.apply_async(('x',), countdown=.2)", [RUN]),
        ("look.apply_async(('x', 'retry'), countdown=.2)", TWICE),
        ("chain(look.si('x'), look.si('y').set(countdown=.2))()", TWICE),
    ],
    ids=["delay", "retry", "chain"],
)
def test_opentelemetry_links_what_runs_to_what_sent_it(
    scene: ContextScene, pool: str, call: str, below: list[str]
) -> None:
    scene.start(pool, env={"TRACED": "1"})
    publish(scene, REQUEST + call)

    spans = Spans(scene.wait(2 + len(below), "spans"))
    sent = ">p:request > p:apply_async/look"
    assert spans.paths() == [">p:request", sent, *(f"{sent} > {path}" for path in below)]
    assert len(spans.traces) == 1


def test_a_trace_that_a_web_server_received_goes_on(scene: ContextScene) -> None:
    code = f"with delayq.context(traceparent='{PARENT}', user='ada'):\n    look.delay('x')"
    scene.start("threads", env={"TRACED": "1"})
    publish(scene, code)

    spans = Spans(scene.wait(2, "spans"))
    assert spans.traces == {TRACE_ID}
    root = "b7ad6b7169203331>p:apply_async/look"
    assert spans.paths() == [root, f"{root} > w:run/look"]
    [run] = scene.read()
    assert run["context"] == {"user": "ada", "traceparent": run["parent"]}


def test_many_tasks_are_linked_to_where_they_were_scheduled(scene: ContextScene) -> None:
    code = (
        "items = [Item((n,), countdown=.2) for n in range(3)]\n"
        + REQUEST
        + "delayq.schedule_many(items, task=look, signals={signals})"
    )
    scene.start("threads", env={"TRACED": "1"})
    for signals, count in ((True, 7), (False, 5)):
        scene.client.delete("spans")
        publish(scene, code.format(signals=signals))
        spans = Spans(scene.wait(count, "spans"))
        sent = ">p:request > p:apply_async/look"
        assert len(spans.traces) == 1
        assert spans.paths().count(f"{sent} > w:run/look") == 3
        assert spans.paths().count(sent) == (3 if signals else 1)


def test_a_trace_goes_through_workers_that_know_nothing_of_it(scene: ContextScene) -> None:
    scene.start("prefork")
    code = "look.delay('parent', 'child', {'traceparent': None})\n    look.delay('again', 'retry')"
    publish(scene, REQUEST + code)

    runs = {(run["name"], run["retries"]): run["parent"] for run in scene.wait(5)}
    [trace] = {span["trace"] for span in scene.wait(3, "spans")}
    by_name = {span["name"]: span for span in scene.read("spans")}
    assert by_name.keys() == {"request", "apply_async/look"}
    assert runs["parent", 0].split("-")[1] == trace
    assert runs["child of parent", 0] == runs["parent", 0]
    assert runs["other child of parent", 0] is None
    assert runs["again", 1] == runs["again", 0] != runs["parent", 0]
