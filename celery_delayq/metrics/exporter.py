"""Answers scrapes, also while the broker is away. A thread reads the slow metrics."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future

from celery_delayq import __version__
from celery_delayq.app import DelayQ
from celery_delayq.metrics.from_rabbitmq import FromRabbitMQ
from celery_delayq.metrics.from_redis import FromRedis
from celery_delayq.metrics.sheet import Sheet
from celery_delayq.store.error_text import describe_error
from celery_delayq.utils.deadline import NotInTime, begin
from celery_delayq.utils.text import spelled

logger = logging.getLogger(__name__)

#: Pause between two reads of the slow metrics: at least so many seconds, and at least so many times
#: the duration of the last read. A read slows down scrapes, in Python and in Redis.
READ_SECONDS, READ_REST_FACTOR = 10.0, 10

#: Seconds after which a broker without an answer counts as away.
BROKER_TIMEOUT_SECONDS = 5.0


class Exporter:
    """Metrics of one app.

    Parameters
    ----------
    tasks : int
        Most pairs of queue and task with metrics of their own.
    """

    def __init__(self, delayq: DelayQ, tasks: int = 200) -> None:
        self._app = delayq.app
        on_rabbitmq = delayq.session.on_rabbitmq
        self._source: FromRabbitMQ | FromRedis = (
            FromRabbitMQ(delayq) if on_rabbitmq else FromRedis(delayq, tasks)
        )
        self._slow = b""
        self._success: float | None = None
        self._outage = ""
        self._reading: Future[bytes] | None = None
        self._lock = threading.Lock()
        self._stopping = threading.Event()

    def start(self) -> None:
        """Start the thread that reads the slow metrics."""
        threading.Thread(target=self._refresh_always, name="delayq-metrics", daemon=True).start()

    def stop(self) -> None:
        """Let the thread end."""
        self._stopping.set()

    def scrape(self, timeout: float = BROKER_TIMEOUT_SECONDS) -> bytes:
        """Return all metrics in Prometheus' text format; wait *timeout* seconds for the broker."""
        began = time.monotonic()
        found = self._read(timeout)
        own = Sheet()
        is_up = found is not None and not self._outage
        own.put("up", int(is_up))
        own.put("build_info", 1, __version__, self._source.broker)
        own.put("scrape_duration_seconds", time.monotonic() - began)
        if is_up:
            self._success = time.time()
        if self._success is not None:
            own.put("last_success_timestamp_seconds", self._success)
        return own.text() if found is None else own.text() + found + self._slow

    def _read(self, timeout: float) -> bytes | None:
        """Return the metrics of the broker, None while the broker is away."""
        with self._lock:
            # A connection may hang. Only one thread waits for it: scrapes at the same time share
            # the result of that thread.
            if self._reading is None or self._reading.done():
                self._reading = begin(self._source.read)
            reading = self._reading
        try:
            found = reading.result(timeout)
        except NotInTime:
            self._note_outage(f"the broker has not answered for {timeout:g} s")
        except Exception as exc:
            self._note_outage(describe_error(exc, self._app))
        else:
            self._note_outage(getattr(self._source, "away", ""))
            return found
        return None

    def _note_outage(self, reason: str) -> None:
        """Log the begin of an outage with its reason, and its end, once each."""
        with self._lock:
            last_reason, self._outage = self._outage, reason
        if reason and reason != last_reason:
            logger.error("Metrics are missing, delayq_up is 0: %s", spelled(reason))
        elif last_reason and not reason:
            logger.warning("reconnected, metrics are complete again")

    def refresh(self) -> None:
        """Read the slow metrics; errors are logged."""
        try:
            self._slow = self._source.read_slow()
        except Exception as exc:
            self._slow = b""
            if not self._outage:
                logger.error("No metrics by task: %s", spelled(describe_error(exc, self._app)))

    def _refresh_always(self) -> None:
        wait = 0.0
        while not self._stopping.wait(wait):
            began = time.monotonic()
            self.refresh()
            wait = max(READ_SECONDS, READ_REST_FACTOR * (time.monotonic() - began))
