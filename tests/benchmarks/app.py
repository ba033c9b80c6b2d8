"""The Celery app of both sides; the environment says which side this process stands on."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

from celery import Celery
from celery.signals import worker_ready

from .records import Recorder

ENVIRONMENT_PREFIX = "DELAYQ_BENCH_"

#: Seconds that a task that fails waits for its retry, and how often it is tried again.
WAIT = 0.5
RETRIES = 3


@dataclass(frozen=True)
class Settings:
    """What a worker or publisher process is told by its parent."""

    broker: str
    records: str
    delayq: bool
    at_least_once: bool
    ready_fd: int | None
    #: For ``celery beat``: how many periodic entries there are, and how many of them tick each
    #: second; the others do once a day.
    entries: tuple[int, int] = (0, 0)
    #: About how many runs our side keeps in its history.
    history: int = 0

    @classmethod
    def from_environment(cls) -> Settings:
        """Read the ``DELAYQ_BENCH_*`` variables."""

        def get(name: str) -> str:
            return os.environ.get(ENVIRONMENT_PREFIX + name, "")

        return cls(
            broker=get("BROKER"),
            records=get("RECORDS"),
            delayq=get("DELAYQ") == "1",
            at_least_once=get("AT_LEAST_ONCE") == "1",
            ready_fd=int(get("READY_FD")) if get("READY_FD") else None,
            entries=(int(get("ENTRIES") or 0), int(get("TICKING") or 0)),
            history=int(get("HISTORY") or 0),
        )

    def to_environment(self) -> dict[str, str]:
        """The reverse of :meth:`from_environment`."""
        values = {
            "BROKER": self.broker,
            "RECORDS": self.records,
            "DELAYQ": str(int(self.delayq)),
            "AT_LEAST_ONCE": str(int(self.at_least_once)),
            "READY_FD": "" if self.ready_fd is None else str(self.ready_fd),
            "ENTRIES": str(self.entries[0]),
            "TICKING": str(self.entries[1]),
            "HISTORY": str(self.history),
        }
        return {ENVIRONMENT_PREFIX + name: value for name, value in values.items()}


def make_app(settings: Settings) -> Celery:
    """An app that differs between the sides only by its broker URL and ``DelayQ(app)``."""
    if settings.delayq:
        import celery_delayq  # noqa: F401  (makes the URL scheme known)

    app = Celery("bench", broker=settings.broker or "memory://")
    app.conf.update(task_ignore_result=True, broker_connection_retry_on_startup=True)
    count, ticking = settings.entries
    app.conf.beat_schedule = {
        f"customer-{n}-report": {
            "task": "bench.tick",
            "schedule": 1.0 if n < ticking else 86_400.0,
            "args": (n,),
        }
        for n in range(count)
    }
    if settings.delayq:
        from celery_delayq import DelayQ

        if settings.history:
            app.conf.broker_transport_options = {"delayq": {"history": settings.history}}
        DelayQ(app, at_least_once=settings.at_least_once)
    elif settings.at_least_once:
        app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True)
    return app


settings = Settings.from_environment()
app = make_app(settings)
_recorder = Recorder(settings.records) if settings.records else None


def _noop() -> None:
    """Do nothing; its message is what publishing is measured with."""


def _record(due: float) -> None:
    """Write down when this was due (seconds since the epoch) and that it starts now."""
    start = time.time()
    if _recorder is not None:
        _recorder.add(due, start)


def _fail(task: Any, failed: float = 0.0) -> None:
    """Write down when this retry was due, and fail again."""
    if failed and _recorder is not None:
        _recorder.add(failed + WAIT, time.time())
    if task.request.retries < RETRIES:
        # Our side waits by the task's policy.
        how = {} if settings.delayq else {"countdown": WAIT}
        raise task.retry(kwargs={"failed": time.time()}, **how)


def _tick(task: Any, number: int) -> None:
    """Write down that this tick runs, and when it was due; of beat's, whose entry it is."""
    start = time.time()
    due = task.request.id.rpartition(":")[2] if settings.delayq else None
    if _recorder is not None:
        _recorder.add(float(number) if due is None else int(due) / 1000, start)


noop = app.task(name="bench.noop")(_noop)
record = app.task(name="bench.record")(_record)
tick = app.task(name="bench.tick", bind=True)(_tick)
fail = app.task(name="bench.fail", bind=True, max_retries=RETRIES, retry_intervals=(WAIT,))(_fail)


def _tell_parent(**_: Any) -> None:
    if settings.ready_fd is not None:
        os.write(settings.ready_fd, b"r")


worker_ready.connect(_tell_parent, weak=False)
