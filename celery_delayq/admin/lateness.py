"""How late tasks started, from the history of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from celery_delayq.admin.load_ahead import MAX_NAMES, By
from celery_delayq.errors import RecordError
from celery_delayq.model.history import RunRecord
from celery_delayq.model.scheduled import moment
from celery_delayq.store.session import Session
from celery_delayq.store.stores import Stores

#: Most runs that are read, the newest ones.
MAX_RUNS = 10_000


@dataclass(frozen=True, slots=True)
class Lateness:
    """Lateness of runs, in ms: from the due time to the start. Negative if clocks differ.

    Attributes
    ----------
    begins : datetime
        The begin of the first step, in UTC. It is a multiple of *step* since 1970.
    step : int
        The length of a step in seconds.
    steps : list[list[int]]
        The lateness of the runs that started in each step.
    by_name : dict[str, list[int]]
        The lateness of the runs of each queue or task, of those with most runs.
    is_cut : bool
        Whether as many runs were read as may be: the first steps may lack some.
    """

    begins: datetime
    step: int
    steps: list[list[int]]
    by_name: dict[str, list[int]]
    is_cut: bool = False

    @property
    def times(self) -> list[datetime]:
        """The begin of each step."""
        return [self.begins + timedelta(seconds=self.step * n) for n in range(len(self.steps))]

    @property
    def all(self) -> list[int]:
        """The lateness of all runs."""
        return [ms for each in self.steps for ms in each]


def lateness(
    session: Session, step: int, steps: int, by: By = "queue", *, most: int = MAX_RUNS
) -> Lateness:
    """Return how late tasks started, up to now. Tasks without an ETA do not count.

    The last step is the current one. Runs are known if the setting ``history`` is more than 0.

    Parameters
    ----------
    step : int
        The length of a step in seconds.
    steps : int
        Number of steps.
    by : str
        Whether *by_name* has queues or tasks: ``"queue"`` or ``"task"``.
    most : int
        Most runs to read, the newest ones.
    """

    def read(stores: Stores) -> Lateness:
        width = step * 1000
        begins = (stores.now_ms() // width - steps + 1) * width
        found = stores.runs_since(begins, most)
        in_steps: list[list[int]] = [[] for _ in range(steps)]
        by_name: dict[str, list[int]] = {}
        for run in _readable(found):
            if run.due is None or run.started is None:
                continue
            place = (run.started - begins) // width
            if 0 <= place < steps:
                in_steps[place].append(run.started - run.due)
                by_name.setdefault(getattr(run, by), []).append(run.started - run.due)
        largest = sorted(by_name.items(), key=lambda each: (-len(each[1]), each[0]))[:MAX_NAMES]
        return Lateness(moment(begins), step, in_steps, dict(largest), len(found) >= most)

    return session.ask(read)


def _readable(entries: Sequence[tuple[str, bytes]]) -> list[RunRecord]:
    """Return the runs that can be read."""
    found: list[RunRecord] = []
    for _, data in entries:
        try:
            found.append(RunRecord.unpack(data))
        except RecordError:
            continue
    return found
