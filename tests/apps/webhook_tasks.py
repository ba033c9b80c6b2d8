"""An app that sends webhooks to this machine and to one host."""

from __future__ import annotations

from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.webhook import Webhook, post

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

settings = Webhook(
    allow=["localhost:*", "127.0.0.1:*", "hooks.example.com"],
    secret=SECRET,
    allow_http=True,
    allow_networks=["127.0.0.0/8", "::1/128"],
    timeout=60,
)

app = Celery("webhooks")
app.conf.broker_connection_retry_on_startup = True
delayq = DelayQ(app, at_least_once=True, webhook=settings)

__all__ = ["SECRET", "app", "delayq", "post", "settings"]
