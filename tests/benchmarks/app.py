"""The Celery app of both sides. The environment says which side a process belongs to."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from celery import Celery
from celery.signals import worker_ready

from .model import given_fields
from .records import Recorder

#: The variable with the settings of a process, as JSON.
VARIABLE = "DELAYQ_BENCH"

#: Most unacknowledged messages of a worker with two processes, for each process.
PREFETCH = 50

#: Seconds until the retry of a failed task, and number of retries.
WAIT = 0.5
RETRIES = 3

#: Seconds of a task that works.
WORK = 0.004

#: The task of which each argument is a lane, and the arguments of its ``Limit``.
LANE_TASK = "bench.lane"
LANE_LIMIT: Mapping[str, Any] = {"rate": "1/d", "key": "{number}"}


@dataclass(frozen=True)
class Settings:
    """The settings of a benchmark's worker and publisher processes."""

    broker: str = "memory://"
    records: str = ""
    delayq: bool = False
    at_least_once: bool = False
    #: For ``celery beat``: number of periodic entries. *ticking* entries tick each second, the
    #: others once a day.
    entries: int = 0
    ticking: int = 0
    #: About how many runs our side keeps in its history.
    history: int = 0
    #: Whether the scripts count: see :mod:`tests.benchmarks.measurements.counting`.
    counting: bool = True
    #: Use quorum queues and a topic exchange, which Celery's own delays in RabbitMQ need, and
    #: :data:`PREFETCH`, because a worker has tasks of the last second.
    quorum: bool = False
    #: Let RabbitMQ confirm each publish; our side always does.
    confirm: bool = False
    #: The limit of the tasks, as arguments of ``Limit``. Stock has ``rate`` as its ``rate_limit``.
    limit: dict[str, Any] | None = None

    @classmethod
    def from_environment(cls) -> Settings:
        """Read the settings of this process."""
        return cls(**json.loads(os.environ.get(VARIABLE, "{}")))

    def to_environment(self) -> dict[str, str]:
        """Return the settings as environment variables."""
        return {VARIABLE: json.dumps(given_fields(self))}


def make_app(settings: Settings) -> Celery:
    """Return an app. Sides differ only by its broker URL and ``DelayQ(app)``."""
    if settings.delayq:
        import celery_delayq  # noqa: F401  (makes the URL scheme known)

    app = Celery("bench", broker=settings.broker)
    app.conf.update(task_ignore_result=True, broker_connection_retry_on_startup=True)
    app.conf.beat_schedule = {
        f"customer-{n}-report": {
            "task": "bench.tick",
            "schedule": 1.0 if n < settings.ticking else 86_400.0,
            "args": (n,),
        }
        for n in range(settings.entries)
    }
    if settings.quorum:
        app.conf.update(
            task_default_queue_type="quorum",
            task_default_exchange_type="topic",
            worker_prefetch_multiplier=PREFETCH,
        )
    if settings.confirm:
        app.conf.broker_transport_options = {"confirm_publish": True}
    if settings.delayq:
        from celery_delayq import DelayQ

        if not settings.counting:
            _count_nothing()
        if settings.history:
            app.conf.broker_transport_options = {"delayq": {"history": settings.history}}
        DelayQ(app, at_least_once=settings.at_least_once, limits=_limits(settings))
        return app
    if settings.at_least_once:
        app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True)
    if settings.limit:
        app.conf.task_annotations = {"*": {"rate_limit": f"{settings.limit['rate']}/s"}}
    return app


def _limits(settings: Settings) -> dict[str, Any] | None:
    """Return the limits by pattern of our side."""
    if settings.limit is None:
        return None
    from celery_delayq import Limit

    return {
        LANE_TASK: Limit("lanes", **LANE_LIMIT),
        "bench.*": Limit("bench", **settings.limit),
    }


def _count_nothing() -> None:
    """Let the functions of ``include/totals.lua`` return at once."""
    from celery_delayq.store.scripting import scripts

    read = scripts._read

    def without_counting(path: str) -> str:
        first = r"(local function (?:add_total|count_others)\(.*\)\n)"
        return re.sub(first, r"\1  do return 0 end\n", read(path))

    scripts._read = without_counting


settings = Settings.from_environment()
app = make_app(settings)
_recorder = Recorder(settings.records) if settings.records else None


def _noop() -> None:
    """Do nothing. Publishing is measured with the message of this task."""


def _record(due: float) -> None:
    """Record the due of this run (seconds since the epoch), and that it starts now."""
    start = time.time()
    if _recorder is not None:
        _recorder.add(due, start)


def _fail(task: Any, failed: float = 0.0) -> None:
    """Record the due of this retry, and fail again."""
    if failed and _recorder is not None:
        _recorder.add(failed + WAIT, time.time())
    if task.request.retries < RETRIES:
        # Our side waits by the task's policy.
        how = {} if settings.delayq else {"countdown": WAIT}
        raise task.retry(kwargs={"failed": time.time()}, **how)


def _work() -> None:
    """Work for some milliseconds, and record start and end."""
    start = time.time()
    time.sleep(WORK)
    if _recorder is not None:
        _recorder.add(start, time.time())


def _lane(number: int) -> None:
    """Do nothing, in a lane with this number."""


def _tick(task: Any, number: int) -> None:
    """Record the start of this tick and its due; for beat, the number of its entry."""
    start = time.time()
    due = task.request.id.rpartition(":")[2] if settings.delayq else None
    if _recorder is not None:
        _recorder.add(float(number) if due is None else int(due) / 1000, start)


noop = app.task(name="bench.noop")(_noop)
record = app.task(name="bench.record")(_record)
work = app.task(name="bench.work")(_work)
lane = app.task(name=LANE_TASK)(_lane)
tick = app.task(name="bench.tick", bind=True)(_tick)
fail = app.task(name="bench.fail", bind=True, max_retries=RETRIES, retry_intervals=(WAIT,))(_fail)


def _say_ready(**_: Any) -> None:
    os.write(1, b"ready\n")  # directly to the log: Celery replaces sys.stdout


worker_ready.connect(_say_ready, weak=False)
