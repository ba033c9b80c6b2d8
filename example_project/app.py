"""The Celery app, as any project has it; `DelayQ` and the broker URL are all that is added."""

from __future__ import annotations

from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.webhook import Webhook
from example_project.settings import broker_url, is_on_rabbitmq, webhook_secret

app = Celery(
    "example_project",
    broker=broker_url(),
    include=["example_project.tasks"],
)
app.conf.update(
    task_ignore_result=True,
    worker_send_task_events=True,
    task_send_sent_event=True,
    # It says when each reminder became ready: what is late before that is the dispatcher's.
    broker_transport_options={"delayq": {} if is_on_rabbitmq() else {"history": 100_000}},
    # A worker takes what it can start at once: webhooks that it took before a reminder was due
    # would come first.
    worker_prefetch_multiplier=1,
    # What `delayq.context` has bound, here the flight, stands in the lines that a webhook logs.
    worker_log_format="[%(asctime)s: %(levelname)s/%(processName)s] %(message)s %(delayq_context)s",
)
delayq = DelayQ(
    app,
    at_least_once=True,
    webhook=Webhook(
        allow=["127.0.0.1:*"],
        secret=webhook_secret(),
        # The receiver is on this machine. One on the Internet needs `allow` alone.
        allow_http=True,
        allow_networks=["127.0.0.0/8"],
    ),
)
