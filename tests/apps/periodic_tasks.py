"""An app with periodic entries, and what tests see of them."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

from celery import Celery
from redis import Redis

from celery_delayq.testing import WorkerProcess, wait_until
from tests.apps.settings import new_app
from tests.support import TIMEOUT
from tests.support.scene import Scene, start_worker
from tests.support.scene import StartWorker as StartWorker  # for the tests

#: Writes down that a tick runs, with Redis' clock in ms.
NOTE = """
local time = redis.call('TIME')
redis.call('RPUSH', KEYS[1], ARGV[1] .. string.format('%.3f}', time[1] * 1000 + time[2] / 1000))
"""


def note(self: Any, do: str = "", seconds: float = 0) -> None:
    """Write down that this runs, and do what the arguments say."""
    with Redis.from_url(self.app.conf.result_backend, socket_timeout=None) as client:
        said = json.dumps({"id": self.request.id, "do": do, "worker": self.request.hostname})
        client.eval(NOTE, 1, "log", said[:-1] + ', "at": ')
        if do == "wait":
            client.blpop("go", timeout=TIMEOUT)
        if do == "die":
            os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(seconds)


def tasks_of(app: Celery) -> Celery:
    """Give *app* the task ``note``."""
    app.task(name="note", bind=True, shared=False, ignore_result=True)(note)
    return app


app = tasks_of(new_app("periodic", at_least_once=True))


def start(delayq_worker: StartWorker, pool: str = "threads", **options: Any) -> WorkerProcess:
    """Start a worker that prefetches no more than it runs; see `start_worker`."""
    conf = {"worker_prefetch_multiplier": 1, **options.pop("conf", {})}
    return start_worker(delayq_worker, "periodic_tasks", pool, conf=conf, **options)


class Diary(Scene):
    """Which ticks ran, and when."""

    def ticks(self, name: str) -> list[int]:
        """Return the ticks of an entry that ran, in order, in ms."""
        found = [id.rpartition(":") for id in self.runs("id")]
        return sorted(int(tick) for each, _, tick in found if each == name)

    def wait_ticks(self, name: str, count: int) -> list[int]:
        """Wait until so many ticks of an entry ran, and return all that did."""
        wait_until(
            lambda: len(self.ticks(name)) >= count,
            TIMEOUT,
            lambda: f"{count} ticks of {name}: {self.runs('id')}, {self.unfinished()}",
        )
        return self.ticks(name)

    def lateness(self, name: str) -> list[float]:
        """Return by how many ms each run of an entry was after its tick."""
        runs = [(id.rpartition(":"), at) for id, at in self.runs("id", "at")]
        return [at - int(tick) for (each, _, tick), at in runs if each == name]
