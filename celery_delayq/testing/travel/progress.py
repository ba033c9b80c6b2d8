"""Counts the runs of one call, and notices tasks that go round without an end. No I/O."""

from __future__ import annotations

from collections import Counter
from typing import Any

from celery_delayq.errors import TravelError

#: While the clock stands still, a chain of tasks, each started by the one before, may have this
#: part of the runs of a call.
SHARE_IN_A_ROW = 10

#: Most moves of the clock for each run that a call may have.
MAX_MOVES_PER_RUN = 10


class Progress:
    """The runs and moves of one call.

    Parameters
    ----------
    most_runs : int
        Most runs.
    """

    def __init__(self, most_runs: int) -> None:
        self.runs = 0
        self._most_runs = most_runs
        self._by_task: Counter[str] = Counter()
        self._moves = 0
        #: By task id: its place in a chain of tasks that ran since the clock moved.
        self._depths: dict[str, int] = {}
        self._is_endless = False

    def note_run(self, request: Any) -> None:
        """Count a run."""
        self.runs += 1
        self._by_task[str(request.name)] += 1
        id, parent = str(request.id), str(request.parent_id)
        # A retry and a requeued message keep their id.
        depth = 1 + max(self._depths.get(id, 0), self._depths.get(parent, 0))
        self._depths[id] = depth
        self._is_endless = self._is_endless or depth > self._most_runs / SHARE_IN_A_ROW

    def note_move(self) -> None:
        """Count a move of the clock."""
        self._moves += 1
        self._depths.clear()

    def check(self, now: str) -> None:
        """Raise TravelError if there is no end to expect.

        Parameters
        ----------
        now : str
            The time of the clock, for the error.
        """
        if self._is_endless:
            raise TravelError(
                f"no rest at {now}: tasks start each other again and again while the clock stands "
                f"still. {self._tasks_text()}. Give the next call a countdown, let it end, or "
                f"{self._knob_text()}"
            )
        is_too_long = self._moves > self._most_runs * MAX_MOVES_PER_RUN
        if is_too_long or self.runs > self._most_runs:
            what = f"{self._moves} moves" if is_too_long else f"{self._most_runs} runs"
            raise TravelError(
                f"more than {what} in one call, at {now}: {self._tasks_text()}. "
                f"Travel a shorter way, cancel what schedules itself again, or {self._knob_text()}"
            )

    def _knob_text(self) -> str:
        return f"allow more runs: delayq_time.most_runs = {10 * self._most_runs}"

    def _tasks_text(self) -> str:
        found = [f"{name} ran {number} times" for name, number in self._by_task.most_common(5)]
        return ", ".join(found) or "no task ran"
