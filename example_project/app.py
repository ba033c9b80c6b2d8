"""The Celery app, as in any project. Only `DelayQ` and the broker URL are added."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from celery import Celery

from celery_delayq import DelayQ, Limit
from celery_delayq.webhook import Webhook
from example_project.plan import WEBHOOKS_AT_ONCE
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
    # The history has the time when a reminder became ready: earlier lateness is the dispatcher's.
    broker_transport_options={"delayq": {} if is_on_rabbitmq() else {"history": 100_000}},
    # A worker takes only tasks that it can start at once. Otherwise webhooks that it has taken
    # would run before a reminder that becomes due.
    worker_prefetch_multiplier=1,
    # The values of `delayq.context`, here the flight, are in the log lines of a webhook.
    worker_log_format="[%(asctime)s: %(levelname)s/%(processName)s] %(message)s %(delayq_context)s",
)


def receiver_of(url: str, *_: Any, **__: Any) -> str:
    """Return the host and port that get a webhook: the key of the limit."""
    return urlsplit(url).netloc


# By the name of the webhook task. RabbitMQ has no limits.
LIMITS = {
    "celery_delayq.webhook*": Limit("receiver", concurrency=WEBHOOKS_AT_ONCE, key=receiver_of)
}
delayq = DelayQ(
    app,
    at_least_once=True,
    limits={} if is_on_rabbitmq() else LIMITS,
    webhook=Webhook(
        allow=["127.0.0.1:*"],
        secret=webhook_secret(),
        # The receiver is on this machine. A receiver on the Internet only needs `allow`.
        allow_http=True,
        allow_networks=["127.0.0.0/8"],
    ),
)
