"""Counts the runs of one call, and notices tasks that go round without an end. No I/O."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from celery_delayq.errors import TravelError

#: While the clock stands still, a chain of tasks, each started by the one before, may have this
#: part of the runs of a call.
SHARE_IN_A_ROW = 10

#: Celery's task that asks again and again whether a chord is done, if the result backend cannot
#: count its members. Its polls are no runs, since a chord may wait for a day.
CHORD_POLL = "celery.chord_unlock"

#: Most polls of one chord for each run that a call may have.
MAX_POLLS_PER_RUN = 10

#: Most moves of the clock for each run that a call may have.
MAX_MOVES_PER_RUN = 10

#: The id of the task of a tick (:func:`celery_delayq.periodic.policy.tick_id`).
_TICK_ID = re.compile(r"(.+):\d{9,}", re.DOTALL)


class Progress:
    """The runs and moves of one call.

    Parameters
    ----------
    most_runs : int
        Most runs, besides polls of chords.
    """

    def __init__(self, most_runs: int) -> None:
        self.runs = 0
        self._most_runs = most_runs
        self._by_task: Counter[str] = Counter()
        #: Ticks by the name of their periodic entry.
        self._by_entry: Counter[str] = Counter()
        self._polls = 0
        #: By the task id of the polls, which is one for each chord.
        self._polls_by_chord: Counter[str] = Counter()
        #: The last poll of a chord that is polled too often.
        self._endless_poll: Any = None
        self._moves = 0
        #: By task id: its place in a chain of tasks that ran since the clock moved.
        self._depths: dict[str, int] = {}
        self._is_endless = False

    def note_run(self, request: Any) -> None:
        """Count a run."""
        self.runs += 1
        self._by_task[str(request.name)] += 1
        id, parent = str(request.id), str(request.parent_id)
        if tick := _TICK_ID.fullmatch(id):
            self._by_entry[tick[1]] += 1
        if request.name == CHORD_POLL:
            self._polls += 1
            self._polls_by_chord[id] += 1
            if self._polls_by_chord[id] > self._most_runs * MAX_POLLS_PER_RUN:
                self._endless_poll = request
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
        if self._endless_poll is not None:
            group_id, body = self._endless_poll.args[:2]
            raise TravelError(
                f"no end at {now}: the chord {group_id} with the body {body['task']} was polled "
                f"more than {self._most_runs * MAX_POLLS_PER_RUN} times in one call. Look for a "
                "task of its header that is scheduled later, held, or a dead letter. Travel a "
                f"shorter way, or {self._knob_text()}"
            )
        # Each poll may need a move of its own.
        is_too_long = self._moves - self._polls > self._most_runs * MAX_MOVES_PER_RUN
        if is_too_long or self.runs - self._polls > self._most_runs:
            what = f"{self._moves} moves" if is_too_long else f"{self._most_runs} runs"
            raise TravelError(
                f"more than {what} in one call, at {now}: {self._tasks_text()}. "
                f"Travel a shorter way, {self._cure_text()}, or {self._knob_text()}"
            )

    def _knob_text(self) -> str:
        return f"allow more runs: delayq_time.most_runs = {10 * self._most_runs}"

    def _cure_text(self) -> str:
        """Return how to have fewer runs: without a periodic entry, if most runs are ticks."""
        if self._by_entry.total() * 2 < self.runs or not self._by_entry:
            return "cancel what schedules itself again"
        [(name, ticks)] = self._by_entry.most_common(1)
        return (
            f"leave out the periodic entry {name!r} ({ticks} ticks) by "
            f"delayq.periodic.pause({name!r})"
        )

    def _tasks_text(self) -> str:
        found = [f"{name} ran {number} times" for name, number in self._by_task.most_common(5)]
        return ", ".join(found) or "no task ran"
