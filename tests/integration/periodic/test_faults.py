"""What is wrong with one periodic entry, or around it, keeps no other from being fired."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.schedules import schedule

from celery_delayq import DelayQ
from celery_delayq.periodic import policy
from celery_delayq.periodic.definition import Definition
from celery_delayq.periodic.entries import Periodic
from celery_delayq.periodic.schedules import register
from celery_delayq.store.periodic import EntryWrite, PeriodicStore
from celery_delayq.testing import ManagedProcess, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.apps.periodic_tasks import Diary, StartWorker, start
from tests.integration.conftest import MakeApp
from tests.support import TIMEOUT
from tests.support.ticking import ticking, write_entries

KEEP: dict[str, Any] = {"catch_up": "all", "catch_up_max": 1000}

#: An app module: its broker, and a module that it includes.
SHOP = """
from celery import Celery
from celery_delayq import DelayQ
app = Celery("shop", broker={!r}, include=[{!r}])
DelayQ(app)
"""


def begin(delayq: DelayQ, every: float, name: str, task: str, source: str = "api") -> Periodic:
    """Return an entry that begins now; it is not stored."""
    definition = Definition.from_fields(every, name=name, task=task, source=source)
    return policy.begin(definition, delayq.store.now_ms(), timezone.utc)


def write_form(delayq: DelayQ, name: str, form: str) -> PeriodicStore:
    """Write an entry that is due, whose schedule has a form that calls would refuse."""
    gate = delayq.store.periodic
    record = begin(delayq, 1, name, "note").pack().replace('{"every":1}', form)
    gate.write([EntryWrite(name, "", record, 1)])
    return gate


@pytest.mark.parametrize(
    ("task", "args", "told"),
    [("nobody.knows", [], "nobody.knows"), ("note", [1, 2, 3, 4, 5], "TypeError")],
    ids=["unknown task", "wrong arguments"],
)
def test_a_task_that_cannot_run_is_a_dead_letter_at_each_tick(
    delayq: DelayQ,
    make_app: MakeApp,
    diary: Diary,
    delayq_worker: StartWorker,
    task: str,
    args: list[int],
    told: str,
) -> None:
    """Another app, such as a web application, that does not know the task may add the entry."""
    DelayQ.of(make_app()).periodic.add("wrong", 0.5, task, args, **KEEP)
    delayq.periodic.add("right", 0.5, "note", **KEEP)
    start(delayq_worker)

    wait_until(lambda: delayq.count_dead() >= 3, TIMEOUT, "three ticks are dead letters")
    diary.wait_ticks("right", 3)

    for dead_letter in delayq.dead_letters():
        assert str(dead_letter.task_id).startswith("wrong:")
        assert dead_letter.task == task
        assert told in f"{dead_letter.exception} {dead_letter.reason}"


def test_a_queue_that_is_broken_keeps_its_own_entries_only(
    delayq: DelayQ, diary: Diary, delayq_redis: RedisUnderTest, delayq_worker: StartWorker
) -> None:
    delayq_redis.client.set("{broken}:due", "no sorted set")
    delayq.periodic.add("stuck", 0.5, "note", queue="broken", **KEEP)
    for n in range(3):
        delayq.periodic.add(f"right {n}", 0.5, "note", **KEEP)
    worker = start(delayq_worker)

    for n in range(3):
        diary.wait_ticks(f"right {n}", 3)
    assert "Periodic entry 'stuck' cannot be fired here" in worker.log
    assert "Redis is away" not in worker.log
    delayq_redis.client.delete("{broken}:due")
    wait_until(
        lambda: delayq_redis.client.llen("broken") > 0,
        TIMEOUT,
        "it is fired, once that is repaired",
    )


def test_what_cannot_be_read_here_is_left_to_those_who_can(
    app: Celery, delayq: DelayQ, caplog: pytest.LogCaptureFixture
) -> None:
    gate = write_form(delayq, "theirs", '{"class":"nowhere:Never"}')

    with ticking(app):
        wait_until(lambda: "cannot be fired here" in caplog.text, TIMEOUT, "it is logged")
        wait_until(lambda: gate.claim_due(10, 1).records, TIMEOUT, "it is left to others")
        # Whoever looks finds it, as often as that may be: the runner takes it no more.
        for _ in range(20):
            wait_until(lambda: gate.claim_due(10, 1).records, 0.2, "it is still left to others")
            time.sleep(0.02)


@register
class Overflows(schedule):
    """A schedule that raises another error than is to be expected."""

    def is_due(self, last_run_at: datetime) -> Any:  # noqa: ARG002
        raise OverflowError("too far")


def test_a_schedule_that_fails_keeps_no_other_from_being_fired(
    app: Celery, delayq: DelayQ, caplog: pytest.LogCaptureFixture
) -> None:
    delayq.periodic.add("right", 0.5, "note", **KEEP)
    path = f"{Overflows.__module__}:{Overflows.__qualname__}"
    write_form(delayq, "wrong", f'{{"class":"{path}","args":[1]}}')

    with ticking(app) as [runner]:
        wait_until(lambda: runner.fired >= 12, TIMEOUT, "the other one is fired")

    assert "Periodic entry 'wrong' cannot be fired here" in caplog.text
    assert "OverflowError: too far" in caplog.text


@contextmanager
def dispatching(folder: Path, broker: str, include: str) -> Iterator[ManagedProcess]:
    """Run a dispatcher of an app that includes a module, and have it end by SIGTERM."""
    (folder / "shop.py").write_text(SHOP.format(broker, include))
    command = [sys.executable, "-m", "celery", "-A", "shop", "delayq", "dispatch"]
    with ManagedProcess(command, cwd=folder) as process:
        yield process
        process.term()
        assert process.wait(timeout=TIMEOUT) == 0


def test_a_dispatcher_knows_the_entries_of_all_modules(
    tmp_path: Path, delayq: DelayQ, delayq_broker_url: str
) -> None:
    (tmp_path / "more.py").write_text(
        "from shop import app\n"
        "@app.on_after_finalize.connect\n"
        "def periodic(sender, **_):\n"
        "    sender.add_periodic_task(3600, app.signature('t'), name='hourly')\n"
    )

    with dispatching(tmp_path, delayq_broker_url, "more") as process:
        wait_until(delayq.periodic.list, TIMEOUT, lambda: f"it is written: {process.log}")

    assert [entry.name for entry in delayq.periodic.list()] == ["hourly"]


def test_a_dispatcher_that_cannot_know_all_removes_nothing(
    tmp_path: Path, delayq: DelayQ, delayq_broker_url: str
) -> None:
    write_entries(delayq, begin(delayq, 0.5, "soon", "t", source="code shop"))

    with dispatching(tmp_path, delayq_broker_url, "missing") as process:
        wait_until(
            lambda: delayq.periodic.list()[0].total_run_count > 1, TIMEOUT, "it fires all the same"
        )

    assert "Periodic entries in code are left to workers" in process.log
    assert [entry.name for entry in delayq.periodic.list()] == ["soon"]
