"""Histograms of runs, from the history of runs where it is on."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import (
    CollectorRegistry,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from celery_delayq.errors import RecordError
from celery_delayq.metrics.catalogue import BY_NAME, OTHER
from celery_delayq.metrics.sheet import label
from celery_delayq.model.history import START, RunRecord
from celery_delayq.store.schedule import Store

#: Runs that are read at once, and in one refresh; the others follow in the next one.
PAGE, MOST = 500, 50_000

#: Upper ends of the buckets in seconds.
BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)

# They are one more series of each histogram, and nobody reads them.
disable_created_metrics()  # type: ignore[no-untyped-call]


class RunHistograms:
    """Histograms that begin when they are made.

    Parameters
    ----------
    tasks : int
        How many queues and tasks get histograms of their own, the first ones that run; the others
        are ``other``. They keep them, as histograms may not get smaller.
    """

    def __init__(self, tasks: int) -> None:
        self._registry = CollectorRegistry()
        self._delay = self._histogram("promotion_delay")
        self._lateness = self._histogram("lateness")
        self._run = self._histogram("run")
        self._most = tasks
        self._labels: dict[tuple[str, str], tuple[str, str]] = {}
        #: By the number of a store.
        self._after: dict[int, str] = {}

    def refresh(self, number: int, store: Store) -> None:
        """Read the runs of a store that have ended since the last call; none at the first one."""
        last = store.history.last() or START
        after = self._after.get(number)
        if after is None or _place(last) < _place(after):
            # After a failover, FLUSHDB or a clock set back: runs from here on are new.
            self._after[number] = last
            return
        for _ in range(0, MOST, PAGE):
            entries = store.history.read(self._after[number], last, PAGE)
            if not entries:
                return
            self._after[number] = entries[-1][0]
            self.observe(data for _, data in entries)

    def observe(self, records: Iterable[bytes]) -> None:
        """Count runs; unreadable ones are passed over."""
        for data in records:
            try:
                run = RunRecord.unpack(data)
            except RecordError:
                continue
            labels = self._names(run.queue, run.task)
            if run.due is not None and run.promoted is not None:
                _observe(self._delay, labels, run.promoted - run.due)
            if run.due is not None and run.started is not None:
                _observe(self._lateness, labels, run.started - run.due)
            if run.started is not None:
                _observe(self._run, labels, run.ended - run.started)

    def text(self) -> bytes:
        """Return the histograms in Prometheus' text format."""
        return generate_latest(self._registry)

    def _names(self, queue: str, task: str) -> tuple[str, str]:
        known = self._labels.get((queue, task))
        if known is not None:
            return known
        if len(self._labels) >= self._most:
            return label(queue), OTHER
        return self._labels.setdefault((queue, task), (label(queue), label(task)))

    def _histogram(self, name: str) -> Histogram:
        info = BY_NAME[f"delayq_{name}_seconds"]
        return Histogram(
            info.name, info.help, info.labels, registry=self._registry, buckets=BUCKETS
        )


def _observe(histogram: Histogram, labels: tuple[str, str], ms: int) -> None:
    histogram.labels(*labels).observe(max(0, ms) / 1000)  # clocks of machines differ


def _place(offset: str) -> tuple[int, ...]:
    return tuple(map(int, offset.split("-")))
