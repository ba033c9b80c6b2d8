"""The two reminders, as ordinary tasks: each sends a webhook, and writes down when it started."""

# Celery has no type annotations, so its decorators have none either.
# mypy: disallow-untyped-decorators=False

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from typing import Any

from celery import Task
from celery.signals import worker_ready
from celery.utils.log import get_task_logger

from celery_delayq.webhook import post
from example_project.app import app
from example_project.ledger import Run
from example_project.plan import RETRY_INTERVALS, Kind, webhook_id
from example_project.records import Records
from example_project.settings import webhook_url

logger = get_task_logger(__name__)


# One reminder of each kind for a flight, until it has run: who publishes a flight again gets the
# one that waits. It keeps its time, which may be another by now, as "replace" would not let it.
ONE_PER_FLIGHT = {"unique_key": "{flight}", "on_conflict": "keep", "unique_scope": "done"}


@app.task(bind=True, **ONE_PER_FLIGHT)
def remind_check_in(self: Task, flight: str, departs: str) -> None:
    """Remind the passengers of `flight`, which `departs` at that ISO time, to check in."""
    _write_down(self)
    _tell(self, Kind.CHECK_IN, flight, departs)
    logger.info("%s departs at %s: please check in", flight, departs)


@app.task(bind=True, **ONE_PER_FLIGHT)
def call_boarding(self: Task, flight: str, departs: str) -> None:
    """Call the passengers of `flight`, which `departs` at that ISO time, to the gate."""
    _write_down(self)
    _tell(self, Kind.BOARDING, flight, departs)
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


def _tell(task: Task, kind: Kind, flight: str, departs: str) -> None:
    # A task of its own: it may fail and be tried again, and the reminder has run.
    post.apply_async(
        (webhook_url(), {"kind": kind.value, "flight": flight, "departs": departs}),
        task_id=webhook_id(task.request.id),
        retry_intervals=RETRY_INTERVALS,
        # The last one in Redis: reminders that are due go first.
        priority=9,
    )
