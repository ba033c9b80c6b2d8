"""What RabbitMQ cannot do is refused before there is a connection, in Python and as a command."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_delayq import DelayQ, Filter
from celery_delayq.errors import NotSupported
from celery_delayq.integration import app_warnings, beat_guard
from celery_delayq.periodic import runner
from tests.support.cli import CommandLine


@pytest.fixture
def delayq() -> Iterator[DelayQ]:
    """The object of an app whose broker is away."""
    with Celery("shop", broker="delayq+amqp://localhost:1//", set_as_current=False) as app:
        yield DelayQ(app)


ALL: dict[str, Any] = {"everything": True}


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda d: d.get("a"), id="get"),
        pytest.param(lambda d: d.find("a"), id="find"),
        pytest.param(lambda d: d.list(), id="list"),
        pytest.param(lambda d: d.entries(Filter()), id="entries"),
        pytest.param(lambda d: d.count(), id="count"),
        pytest.param(lambda d: d.cancel("a"), id="cancel"),
        pytest.param(lambda d: d.cancel_ids(["a"]), id="cancel_ids"),
        pytest.param(lambda d: d.cancel_all(Filter(), **ALL), id="cancel_all"),
        pytest.param(lambda d: d.cancel_canvas(root_id="a"), id="cancel_canvas"),
        pytest.param(lambda d: d.reschedule("a", countdown=5), id="reschedule"),
        pytest.param(lambda d: d.run_now("a"), id="run_now"),
        pytest.param(lambda d: d.run_all_now(Filter(), **ALL), id="run_all_now"),
        pytest.param(lambda d: d.pause(queue="celery"), id="pause"),
        pytest.param(lambda d: d.resume(task="x"), id="resume"),
        pytest.param(lambda d: d.paused(), id="paused"),
        pytest.param(lambda d: d.history(), id="history"),
        pytest.param(lambda d: d.periodic.list(), id="periodic.list"),
        pytest.param(lambda d: d.periodic.iterate(), id="periodic.iterate"),
        pytest.param(lambda d: d.periodic.get("x"), id="periodic.get"),
        pytest.param(lambda d: d.periodic.remove("x"), id="periodic.remove"),
        pytest.param(lambda d: d.revocation.revoke(["a"]), id="revocation.revoke"),
        pytest.param(lambda d: d.export_to("schedule.jsonl"), id="export_to"),
    ],
)
def test_a_call_says_that_rabbitmq_cannot_do_it_and_what_can(
    delayq: DelayQ, call: Callable[[Any], object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotSupported, match=r"RabbitMQ can neither .* delayq\+redis:// can"):
        call(delayq)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    "command",
    [
        *("list", "list --json", "get a", "count", "cancel a", "cancel --task x --yes"),
        *("cancel-canvas --root a", "reschedule a --in 5", "run-now a", "pause --task x"),
        *("resume --task x", "paused", "periodic list", "periodic show n", "fsck", "dispatch"),
        "export schedule.jsonl",
    ],
)
def test_a_command_says_so_in_one_sentence_and_exits_with_1(
    delayq: DelayQ, command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = CommandLine(delayq.app)(*command.split())

    assert (ran.code, ran.out.replace("connecting\n", "")) == (1, "")
    assert ran.err.startswith("Error: RabbitMQ can neither ")
    assert ran.err.endswith("a broker delayq+redis:// can\n")
    assert ran.err.count("\n") == 1


def test_a_worker_warns_that_celery_beat_has_to_fire_the_entries(
    delayq: DelayQ, caplog: pytest.LogCaptureFixture
) -> None:
    app = delayq.app
    app.conf.beat_schedule = {"each second": {"task": "x", "schedule": 1.0}}
    with app.connection_for_read() as connection, caplog.at_level(logging.WARNING):
        app_warnings.check_worker(SimpleNamespace(app=app, connection=connection))
        beat_guard.begin(SimpleNamespace(app=app))
        assert runner.begin(app) is None

    [said] = [each.getMessage() for each in caplog.records]
    assert said.startswith("beat_schedule has entries (1): workers fire them only where ")
    assert said.endswith("a broker delayq+redis://. Here celery beat has to run")
