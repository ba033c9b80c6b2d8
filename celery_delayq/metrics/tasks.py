"""Counts entries by task, for the largest tasks only. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from celery_delayq.metrics.catalogue import OTHER_TASKS
from celery_delayq.utils import foreign

#: The task name of an unreadable message.
UNREADABLE_TASK = "(unreadable)"

#: A number for each queue and task.
ByTask = Counter[tuple[str, str]]


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
