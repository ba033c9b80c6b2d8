"""The two reminders and the hourly report, as ordinary tasks."""

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
from example_project.settings import is_on_rabbitmq, webhook_url
from example_project.traffic import ended_hour, report_on
from example_project.wanted import Wanted

logger = get_task_logger(__name__)

# Seconds after which a report checks again whether all movements of its hour are recorded.
REPORT_RETRY_S = 0.1

# One reminder of each kind for a flight, until it has run. A second publish of a flight returns the
# waiting reminder. It keeps its time, which may have been moved; "replace" would change it.
ONE_PER_FLIGHT = {"unique_key": "{flight}", "on_conflict": "keep", "unique_scope": "done"}
if is_on_rabbitmq():
    ONE_PER_FLIGHT = {}


@app.task(bind=True, **ONE_PER_FLIGHT)
def remind_check_in(self: Task, flight: str, departs: str) -> None:
    """Remind the passengers of `flight`, which `departs` at that ISO time, to check in."""
    if _begins(self):
        _post_webhook(self, Kind.CHECK_IN, flight, departs)
        logger.info("%s departs at %s: please check in", flight, departs)


@app.task(bind=True, **ONE_PER_FLIGHT)
def call_boarding(self: Task, flight: str, departs: str) -> None:
    """Call the passengers of `flight`, which `departs` at that ISO time, to the gate."""
    if _begins(self):
        _post_webhook(self, Kind.BOARDING, flight, departs)
        logger.info("%s departs at %s: now boarding", flight, departs)


@app.task(bind=True, max_retries=None)
def traffic_report(self: Task, starts_ms: int, hour_ms: int) -> None:
    """Report on the hour that has just ended; an hour takes `hour_ms` from `starts_ms` on."""
    hour = ended_hour(self.request.id, starts_ms, hour_ms)
    if not records().is_complete_until(starts_ms + (hour + 1) * hour_ms):
        # The report was faster than the recording. The retry is the same task, of the same tick.
        raise self.retry(countdown=REPORT_RETRY_S)
    report = report_on(hour, self.request.id, records().movements(hour))
    if records().add_report(report):
        logger.info("hour %s: %s flights, %s cancelled", hour, report.flights, report.cancelled)


@worker_ready.connect
def _note_ready(sender: Any, **_: Any) -> None:
    records().add_worker(sender.hostname)


@lru_cache(maxsize=1)
def records() -> Records:
    """Return this process's connection to the records."""
    return Records()


@lru_cache(maxsize=1)
def wanted() -> Wanted:
    """Return this process's connection to the store of wanted reminders."""
    return Wanted()


def _begins(task: Task) -> bool:
    """Record the start of a reminder; `False` if news has made it obsolete."""
    # The clock is read first: all later steps would count as lateness.
    started_ms = records().now_ms()
    eta = task.request.eta
    eta_ms = None if eta is None else round(datetime.fromisoformat(eta).timestamp() * 1000)
    # In Redis a changed reminder no longer waits at its old time, in RabbitMQ it does.
    if is_on_rabbitmq() and not wanted().begin(task.request.id, eta_ms):
        records().add_set_aside(task.request.id)
        return False
    records().add_run(Run(task.request.id, eta_ms, started_ms))
    return True


def _post_webhook(task: Task, kind: Kind, flight: str, departs: str) -> None:
    # A task of its own, since it may fail and be tried again after the reminder has run.
    post.apply_async(
        (webhook_url(), {"kind": kind.value, "flight": flight, "departs": departs}),
        task_id=webhook_id(task.request.id),
        retry_intervals=RETRY_INTERVALS,
        # The last priority in Redis, so that due reminders run first. RabbitMQ counts the other
        # way.
        priority=None if is_on_rabbitmq() else 9,
    )
