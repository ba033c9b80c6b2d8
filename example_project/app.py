"""The Celery app, as any project has it; `DelayQ` and the broker URL are all that is added."""

from __future__ import annotations

from celery import Celery

from celery_delayq import DelayQ
from example_project.settings import broker_url

app = Celery(
    "example_project",
    broker=broker_url(),
    include=["example_project.tasks"],
)
app.conf.update(
    task_ignore_result=True,
    worker_send_task_events=True,
    task_send_sent_event=True,
)
delayq = DelayQ(app, at_least_once=True)
