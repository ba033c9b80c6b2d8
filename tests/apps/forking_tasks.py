"""An app whose worker has threads that connect to the broker, and never come to an end."""

from __future__ import annotations

import threading
from typing import Any

from celery import Celery
from celery.signals import worker_ready

from celery_delayq.transport.channel import Channel
from tests.apps.settings import new_app

app = new_app("forking")


def wait_for_ever(_channel: object) -> Any:
    """Say that a thread connects, and never return."""
    print("connecting", flush=True)
    threading.Event().wait()


class SilentChannel(Channel):
    """A channel whose connections wait for ever."""

    Client = None
    pool = async_pool = property(wait_for_ever)

    def __init__(self) -> None:
        pass


@worker_ready.connect
def connect_for_ever(**_: object) -> None:
    """Let a thread create a client, and another one a store."""
    for name in ("client", "store"):
        threading.Thread(target=getattr, args=(SilentChannel(), name), daemon=True).start()


@app.task(name="forking.send", bind=True, shared=False)
def send(self: Any, id: str) -> None:
    """Send another task."""
    own: Celery = self.app
    own.send_task("forking.end", task_id=id)


@app.task(name="forking.end", shared=False)
def end() -> str:
    """End at once."""
    return "ended"
