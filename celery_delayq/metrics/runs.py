"""Histograms of runs, if the history of runs is on."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from celery_delayq.errors import RecordError
from celery_delayq.metrics.catalogue import BY_NAME, OTHER_TASKS
from celery_delayq.metrics.sheet import label
from celery_delayq.model.history import START_OFFSET, RunRecord, place_of
from celery_delayq.store.store import Store

#: Most runs of one read, and of one refresh. The next refresh reads the other runs.
PAGE_RUNS, MAX_RUNS = 500, 50_000

#: Upper ends of the buckets in seconds.
BUCKET_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, float("inf"))


class _Histogram(Collector):
    """Counts of one metric by queue and task.

    The histogram of prometheus_client is not used: with PROMETHEUS_MULTIPROC_DIR, which is for the
    processes of a web server, it keeps its numbers in files.
    """

    def __init__(self, name: str) -> None:
        self._info = BY_NAME[f"delayq_{name}_seconds"]
        self._counts: dict[tuple[str, str], list[int]] = {}
        self._sums: dict[tuple[str, str], float] = {}

    def observe(self, labels: tuple[str, str], ms: int) -> None:
        """Count a duration in ms. A negative one, which differing clocks cause, counts as 0."""
        seconds = max(0, ms) / 1000
        counts = self._counts.setdefault(labels, [0] * len(BUCKET_SECONDS))
        counts[bisect_left(BUCKET_SECONDS, seconds)] += 1
        self._sums[labels] = self._sums.get(labels, 0.0) + seconds

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Yield the metric for prometheus_client."""
        family = HistogramMetricFamily(self._info.name, self._info.help, labels=self._info.labels)
        for labels, counts in self._counts.items():
            ends = map(floatToGoString, BUCKET_SECONDS)
            buckets = [*zip(ends, accumulate(counts), strict=True)]
            family.add_metric(labels, buckets, self._sums[labels])
        yield family


class RunHistograms:
    """Histograms of the runs since this object was made.

    Parameters
    ----------
    tasks : int
        Most pairs of queue and task with histograms of their own: the first pairs that run. All
        later tasks share ``other``. A pair keeps its histograms, since they may not get smaller.
    """

    def __init__(self, tasks: int) -> None:
        self._delay, self._lateness, self._run = map(
            _Histogram, ("promotion_delay", "lateness", "run")
        )
        self._registry = CollectorRegistry()
        for each in (self._delay, self._lateness, self._run):
            self._registry.register(each)
        self._most = tasks
        self._labels: dict[tuple[str, str], tuple[str, str]] = {}
        #: The offset of the last run that was read, by the key of a history.
        self._reached: dict[str, str] = {}

    def refresh(self, store: Store) -> None:
        """Count the runs of a store that have ended since the last call; none at the first call."""
        newest, key = store.history.newest_offset() or START_OFFSET, store.keys.history
        reached = self._reached.get(key)
        if reached is None or place_of(newest) < place_of(reached):
            # The history is shorter after a failover, a FLUSHDB or a clock that was set back.
            self._reached[key] = newest
            return
        for _ in range(0, MAX_RUNS, PAGE_RUNS):
            entries = store.history.read(self._reached[key], newest, PAGE_RUNS)
            if not entries:
                return
            self._reached[key] = entries[-1][0]
            self.observe(data for _, data in entries)

    def observe(self, records: Iterable[bytes]) -> None:
        """Count runs; unreadable runs are skipped."""
        for data in records:
            try:
                run = RunRecord.unpack(data)
            except RecordError:
                continue
            labels = self._names(run.queue, run.task)
            if run.due is not None and run.promoted is not None:
                self._delay.observe(labels, run.promoted - run.due)
            if run.due is not None and run.started is not None:
                self._lateness.observe(labels, run.started - run.due)
            if run.started is not None:
                self._run.observe(labels, run.ended - run.started)

    def text(self) -> bytes:
        """Return the histograms in Prometheus' text format."""
        return generate_latest(self._registry)

    def _names(self, queue: str, task: str) -> tuple[str, str]:
        known = self._labels.get((queue, task))
        if known is not None:
            return known
        if len(self._labels) >= self._most:
            return label(queue), OTHER_TASKS
        return self._labels.setdefault((queue, task), (label(queue), label(task)))
