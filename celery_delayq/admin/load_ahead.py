"""The load to come: scheduled tasks by the time at which they are due."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from celery_delayq.model.scheduled import moment
from celery_delayq.model.script_values import EntryCondition
from celery_delayq.store.paging import counts_of, queues_of
from celery_delayq.store.scripting.calls import Steps
from celery_delayq.store.session import Session
from celery_delayq.store.store import Store
from celery_delayq.store.stores import Stores

#: Most queues or tasks with counts of their own, the largest first.
MAX_NAMES = 6

#: Most queues that are counted by time, those with most entries first.
MAX_QUEUES = 200

#: How counts are split.
By = Literal["queue", "task"]


@dataclass(frozen=True, slots=True)
class LoadAhead:
    """Scheduled tasks by due time.

    Attributes
    ----------
    begins : datetime
        The begin of the first step, in UTC. It is a multiple of *step* since 1970.
    step : int
        The length of a step in seconds.
    counts : dict[str, list[int]]
        The number of tasks in each step, for each of the largest queues or tasks.
    others : list[int]
        The number of all other tasks in each step.
    later : int
        Number of tasks that are due after the last step.
    uncounted : int
        Number of tasks within the steps in queues that were not counted by time.
    """

    begins: datetime
    step: int
    counts: dict[str, list[int]]
    others: list[int]
    later: int
    uncounted: int

    @property
    def times(self) -> list[datetime]:
        """The begin of each step."""
        return [self.begins + timedelta(seconds=self.step * n) for n in range(len(self.others))]

    @property
    def ends(self) -> datetime:
        """The end of the last step, in UTC."""
        return self.begins + timedelta(seconds=self.step * len(self.others))

    @property
    def last_moment(self) -> datetime:
        """The last millisecond of the last step, in UTC."""
        return self.ends - timedelta(milliseconds=1)

    @property
    def total(self) -> int:
        """Number of tasks in all steps."""
        return sum(map(sum, self.counts.values())) + sum(self.others) + self.uncounted


def load_ahead(session: Session, step: int, steps: int, by: By = "queue") -> LoadAhead:
    """Count scheduled tasks by due time, from now on.

    The first step may have begun. Tasks that are overdue are not counted.

    Parameters
    ----------
    step : int
        The length of a step in seconds.
    steps : int
        Number of steps.
    by : str
        Whether to split the counts by ``"queue"`` or by ``"task"``.
    """

    def read(stores: Stores) -> LoadAhead:
        now = stores.now_ms()
        begins = now // (step * 1000) * step * 1000
        ends = begins + steps * step * 1000
        queues = queues_of(stores, None)
        sizes = Counter(counts_of(stores, queues, EntryCondition(None, now, ends - 1)))
        largest = [queue for queue, number in sizes.most_common(MAX_QUEUES) if number]
        bounds = [
            (max(now, begins + n * step * 1000), begins + (n + 1) * step * 1000 - 1)
            for n in range(steps)
        ]
        by_queue = _counts(stores, largest, bounds, None)
        total = [sum(each) for each in zip(*by_queue.values(), strict=True)] or [0] * steps
        if by == "queue":
            counts = {queue: by_queue[queue] for queue in largest[:MAX_NAMES]}
        else:
            counts = {
                task: [sum(each) for each in zip(*found.values(), strict=True)]
                for task in _largest_tasks(stores, largest)
                if (found := _counts(stores, largest, bounds, task))
            }
        shown = [sum(each) for each in zip(*counts.values(), strict=True)] or [0] * steps
        later = counts_of(stores, queues, EntryCondition(None, ends, None))
        return LoadAhead(
            begins=moment(begins),
            step=step,
            counts=counts,
            others=[max(0, n - m) for n, m in zip(total, shown, strict=True)],
            later=sum(later.values()),
            uncounted=sum(number for queue, number in sizes.items() if queue not in largest),
        )

    return session.ask(read)


def tasks_of(stores: Stores, queues: Sequence[str]) -> Counter[str]:
    """Return the number of scheduled tasks by the name of the task."""
    found: Counter[str] = Counter()
    its = stores.run_each(queues, lambda store, queue: store.scheduled_tasks_steps(queue))
    for counts in its.values():
        found.update(counts)
    return found


def _largest_tasks(stores: Stores, queues: Sequence[str]) -> list[str]:
    return [task for task, _ in tasks_of(stores, queues).most_common(MAX_NAMES)]


def _counts(
    stores: Stores, queues: Sequence[str], bounds: Sequence[tuple[int, int]], task: str | None
) -> dict[str, list[int]]:
    """Return the number of entries of each queue between each two due times in ms."""
    each = [EntryCondition(task, first, last) for first, last in bounds]

    def steps(store: Store, queue: str) -> Steps[list[int]]:
        return store.control.counts_steps(queue, each)

    return stores.run_each(queues, steps)
