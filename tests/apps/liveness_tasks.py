"""An app whose tasks, and whose worker's loop, can stand still."""

from __future__ import annotations

from typing import Any

from celery.worker.control import control_command

from celery_delayq.utils import native_threads
from tests.apps.settings import new_app

app = new_app("alive")


@app.task(name="stand_still", shared=False)
def stand_still(seconds: float) -> None:
    native_threads.sleep(seconds)


@control_command(args=[("seconds", float)])
def hang(_state: Any, seconds: float) -> None:
    """Stop the worker's loop."""
    native_threads.sleep(seconds)
