"""The two reminders, as ordinary tasks. They tell nobody: they write down when they started."""

# Celery has no type annotations, so its decorators have none either.
# mypy: disallow-untyped-decorators=False

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from typing import Any

from celery import Task
from celery.signals import worker_ready
from celery.utils.log import get_task_logger

from example_project.app import app
from example_project.ledger import Run
from example_project.records import Records

logger = get_task_logger(__name__)


@app.task(bind=True)
def remind_check_in(self: Task, flight: str, departs: str) -> None:
    """Remind the passengers of `flight`, which `departs` at that ISO time, to check in."""
    _write_down(self)
    logger.info("%s departs at %s: please check in", flight, departs)


@app.task(bind=True)
def call_boarding(self: Task, flight: str, departs: str) -> None:
    """Call the passengers of `flight`, which `departs` at that ISO time, to the gate."""
    _write_down(self)
    logger.info("%s departs at %s: now boarding", flight, departs)


@worker_ready.connect
def _say_ready(sender: Any, **_: Any) -> None:
    records().add_worker(sender.hostname)


@lru_cache(maxsize=1)
def records() -> Records:
    """Give this process's connection to the books."""
    return Records()


def _write_down(task: Task) -> None:
    # The clock is read first: all that follows would count as lateness.
    started_ms = records().now_ms()
    eta = task.request.eta
    eta_ms = None if eta is None else round(datetime.fromisoformat(eta).timestamp() * 1000)
    records().add_run(Run(task.request.id, eta_ms, started_ms))
