"""Moving and cancelling what is scheduled: ``delayq.reschedule`` and ``delayq.cancel``."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from datetime import datetime

from celery_delayq import Outcome
from celery_delayq.errors import InvalidETA
from example_project.app import delayq
from example_project.news import News
from example_project.plan import CompressedClock, Kind, Reminder, as_datetime, remind
from example_project.records import Records


def move(task_id: str, eta: datetime) -> Outcome:
    """Move a task to `eta`, if it is not too late: the outcome says so."""
    try:
        return delayq.reschedule(task_id, eta=eta)
    except InvalidETA:
        # The news came so late that the new time has passed as well: it is run at once.
        return Outcome.PAST


class NewsDesk:
    """Changes the reminders of a flight when there is news of it, and writes down the outcomes."""

    def __init__(self, news: Iterable[News], clock: CompressedClock, records: Records) -> None:
        self._news = deque(news)
        self._clock = clock
        self._records = records
        self.cancelled = 0

    @property
    def next_ms(self) -> float:
        """When the next news is known in real ms since 1970, infinite when there is no more."""
        return self._clock.real_ms(self._news[0].known) if self._news else math.inf

    @property
    def is_done(self) -> bool:
        """Whether there is no more news."""
        return not self._news

    def take_in(self, now_ms: float) -> None:
        """Take in all that is known by now."""
        while self.next_ms <= now_ms:
            flight = self._news.popleft().flight
            for kind in Kind:
                if flight.departed is None:
                    self._cancel(remind(kind, flight, flight.scheduled, self._clock.begins))
                else:
                    self._move(remind(kind, flight, flight.departed, self._clock.begins))

    def _cancel(self, reminder: Reminder) -> None:
        outcome = delayq.cancel(reminder.task_id)
        self.cancelled += outcome is Outcome.DONE
        self._records.add_change(reminder.task_id, "cancel", outcome.value)

    def _move(self, reminder: Reminder) -> None:
        eta_ms = self._clock.real_ms(reminder.planned)
        outcome = move(reminder.task_id, as_datetime(eta_ms))
        self._records.add_change(reminder.task_id, "move", outcome.value, eta_ms)
