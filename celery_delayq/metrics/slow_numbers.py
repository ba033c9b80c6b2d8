"""Slow metrics: reading them takes longer than a scrape may take."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Set
from contextlib import contextmanager
from typing import TypeVar

from celery_delayq.errors import BrokerUnavailable
from celery_delayq.metrics.catalogue import OTHER_TASKS, STATUSES
from celery_delayq.metrics.limits import LimitNumbers
from celery_delayq.metrics.runs import RunHistograms
from celery_delayq.metrics.sheet import Sheet
from celery_delayq.store.gauges import SAMPLED_QUEUES
from celery_delayq.store.keys import Layout
from celery_delayq.store.scripting.calls import Steps
from celery_delayq.store.store import Store, layouts
from celery_delayq.store.stores import Stores
from celery_delayq.utils import foreign
from celery_delayq.utils.once import warn_once

T = TypeVar("T")

logger = logging.getLogger(__name__)

#: The task name of an unreadable message.
UNREADABLE_TASK = "(unreadable)"

#: A number for each queue and task.
ByTask = Counter[tuple[str, str]]


class SlowNumbers:
    """Reads numbers by task, of memory, of limits, of periodic entries and of runs.

    Parameters
    ----------
    consumed : Collection[str]
        Queues of the app. The queues in Redis' registry are read, too.
    tasks : int
        Most pairs of queue and task with numbers of their own.
    """

    def __init__(self, consumed: Collection[str], tasks: int) -> None:
        self._consumed, self._tasks = consumed, tasks
        self._histograms = RunHistograms(tasks)

    def read(self, stores: Stores) -> bytes:
        """Return the numbers in Prometheus' text format."""
        sheet = Sheet()
        scheduled, ready = ByTask(), ByTask()
        limits = LimitNumbers()

        def read_store(store: Store, consumed: Set[str]) -> None:
            queues = self._count(sheet, store, consumed, scheduled, ready)
            with _skip_errors("of limits"):
                limits.read(store, queues)
            with _skip_errors("of periodic entries"):
                self._put_periodic(sheet, *store.gauges.periodic(store.now_ms()))
            with _skip_errors("of runs"):
                self._histograms.refresh(store)

        stores.ask_each(self._consumed, read_store)
        limits.put(sheet)
        kept = {pair for pair, _ in (scheduled + ready).most_common(self._tasks)}
        for name, counts in (("scheduled", scheduled), ("ready", ready)):
            for (queue, task), count in limit_counts(counts, kept).items():
                sheet.put(f"{name}_entries", count, queue, task)
        return sheet.text() + self._histograms.text()

    def _count(
        self, sheet: Sheet, store: Store, consumed: Set[str], scheduled: ByTask, ready: ByTask
    ) -> list[str]:
        """Count the entries of a store by task, and put the memory of its queues. Return them."""
        gauges = store.gauges
        known: dict[str, Layout] = {}
        with _skip_errors("of the registry of queues"):
            known = layouts(store.registry())
        queues = sorted({*known, *consumed})

        def read(what: str, steps: Callable[[str], Steps[T]]) -> Iterator[tuple[str, T]]:
            found: list[T | Exception] = []
            with _skip_errors(what):
                found = store.run_each((steps(queue) for queue in queues), SAMPLED_QUEUES)
            for queue, result in zip(queues, found, strict=False):
                if isinstance(result, Exception):
                    with _skip_errors(f"{what} of queue {queue!r}"):
                        raise result
                else:
                    yield queue, result

        def samples(queue: str) -> Steps[list[tuple[float, list[str]]]]:
            return gauges.sample_steps(queue, known.get(queue, store.layout), task_of)

        for queue, counts in read("of scheduled tasks", store.scheduled_tasks_steps):
            scheduled.update({(queue, task): count for task, count in counts.items()})
        for queue, found in read("of ready tasks", samples):
            ready.update({(queue, task): count for task, count in estimate_counts(found).items()})
        for queue, memory in read("of memory", gauges.memory_steps):
            if memory is not None:
                sheet.put("schedule_memory_bytes", memory, queue)
        return queues

    def _put_periodic(self, sheet: Sheet, statuses: dict[str, int], late: int) -> None:
        late = min(late, statuses.get("on", 0))
        known = {"on": statuses.get("on", 0) - late, "late": late}
        known |= {name: statuses.get(name, 0) for name in ("paused", "ended")}
        known["unreadable"] = sum(statuses.values()) - sum(known.values())
        for status in STATUSES:
            sheet.put("periodic_entries", known[status], status)


@contextmanager
def _skip_errors(what: str) -> Iterator[None]:
    """Leave out numbers that cannot be read, and log a warning once. Other numbers are kept."""
    try:
        yield
    except BrokerUnavailable:
        raise
    except Exception as exc:  # any error: the other numbers must be exported
        warn_once(logger, f"No numbers {what}: {exc}")


def task_of(message: bytes) -> str:
    """Return the name of the task of a ready message."""
    try:
        return str(foreign.loads(message)["headers"]["task"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return UNREADABLE_TASK


def estimate_counts(samples: Iterable[tuple[float, list[str]]]) -> dict[str, int]:
    """Return the estimated number of messages of each task, from weighted samples of tasks."""
    weights: dict[str, float] = {}
    for weight, tasks in samples:
        for task, count in Counter(tasks).items():
            weights[task] = weights.get(task, 0) + weight * count
    return {task: round(weight) for task, weight in weights.items()}


def limit_counts(counts: ByTask, kept: Collection[tuple[str, str]]) -> ByTask:
    """Return the counts of the pairs in *kept*, and the sum of other tasks as ``other``."""
    found: ByTask = Counter()
    for (queue, task), count in counts.items():
        found[queue, task if (queue, task) in kept else OTHER_TASKS] += count
    return found
