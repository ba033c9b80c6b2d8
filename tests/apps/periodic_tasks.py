"""An app with periodic entries, and what tests see of them."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from celery import Celery
from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.testing import FAST_START, WorkerProcess
from tests.apps.control_tasks import Scene

TIMEOUT = 60.0

SETTINGS: dict[str, Any] = json.loads(os.environ.get("PERIODIC_SETTINGS", "{}"))

StartWorker = Callable[..., WorkerProcess]

#: Writes down that a tick runs, with Redis' clock in ms.
NOTE = """
local time = redis.call('TIME')
redis.call('RPUSH', KEYS[1], ARGV[1] .. string.format('%.3f}', time[1] * 1000 + time[2] / 1000))
"""


def note(self: Any, do: str = "", seconds: float = 0) -> None:
    """Write down that this runs, and do what is told."""
    with Redis.from_url(self.app.conf.result_backend, socket_timeout=None) as client:
        said = json.dumps({"id": self.request.id, "do": do, "worker": self.request.hostname})
        client.eval(NOTE, 1, "log", said[:-1] + ', "at": ')
        if do == "wait":
            client.blpop("go", timeout=30)
        if do == "die":
            os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(seconds)


def tasks_of(app: Celery) -> Celery:
    """Give *app* the task ``note``."""
    app.task(name="note", bind=True, shared=False, ignore_result=True)(note)
    return app


app = Celery("periodic")
app.conf.broker_connection_retry_on_startup = True
DelayQ(app, at_least_once=True)
app.conf.update(SETTINGS)
tasks_of(app)


def start(delayq_worker: StartWorker, pool: str = "threads", **options: Any) -> WorkerProcess:
    """Start a worker; *conf* are Celery's settings, and *delayq* ours."""
    conf = {"worker_prefetch_multiplier": 1, **options.pop("conf", {})}
    if "delayq" in options:
        conf["broker_transport_options"] = {"delayq": options.pop("delayq")}
    return delayq_worker(
        "tests.apps.periodic_tasks:app",
        pool=pool,
        concurrency=options.pop("concurrency", 2),
        extra_args=FAST_START,
        env={"PERIODIC_SETTINGS": json.dumps(conf), **options.pop("env", {})},
        **options,
    )


class Diary(Scene):
    """Which ticks ran, and when."""

    def ticks(self, name: str) -> list[int]:
        """Return the ticks of an entry that ran, in order, in ms."""
        found = [id.rpartition(":") for id in self.runs("id")]
        return sorted(int(tick) for each, _, tick in found if each == name)

    def lateness(self, name: str) -> list[float]:
        """Return by how many ms each run of an entry was after its tick."""
        runs = [(id.rpartition(":"), at) for id, at in self.runs("id", "at")]
        return [at - int(tick) for (each, _, tick), at in runs if each == name]
