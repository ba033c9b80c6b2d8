"""An app with messages and records of every kind that Redis stores, for the dump of a version."""

from __future__ import annotations

from celery_delayq import Limit
from tests.apps.control_tasks import work
from tests.apps.settings import new_app

app = new_app(
    "format",
    at_least_once=True,
    broker_transport_options={"delayq": {"history": 1000}},
)

app.task(bind=True, name="format.work", shared=False)(work)
app.task(bind=True, name="format.paused", shared=False)(work)
app.task(bind=True, name="format.revoked", shared=False)(work)
app.task(
    bind=True,
    name="format.limited",
    shared=False,
    limit=Limit("format", concurrency=1, key="{key}"),
)(work)
app.task(bind=True, name="format.unique", shared=False, unique_key="{key}", on_conflict="keep")(
    work
)
