"""An app that is told its settings by the environment, whatever its broker is."""

from __future__ import annotations

import json
import os

from celery import Celery

from celery_delayq import DelayQ

app = Celery("url")
app.conf.broker_connection_retry_on_startup = True
app.conf.update(json.loads(os.environ.get("URL_SETTINGS", "{}")))
DelayQ(app)


@app.task(name="url.add", shared=False)
def add(x: int, y: int) -> int:
    return x + y
