"""Move and cancel scheduled tasks: ``delayq.reschedule`` and ``delayq.cancel``.

RabbitMQ has neither. There a due reminder asks whether it is still wanted: see `wanted`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

from celery_delayq import Outcome
from celery_delayq.errors import InvalidETA
from example_project.app import delayq
from example_project.news import News
from example_project.plan import CompressedClock, Kind, Reminder, as_datetime, remind
from example_project.publish import send
from example_project.records import Records
from example_project.settings import is_on_rabbitmq
from example_project.tasks import wanted


def cancel(reminder: Reminder) -> Outcome:
    """Cancel a reminder; the outcome tells whether it was too late."""
    if is_on_rabbitmq():
        return Outcome.DONE if wanted().cancel(reminder.task_id) else Outcome.UNKNOWN
    return delayq.cancel(reminder.task_id)


def move(reminder: Reminder, clock: CompressedClock, now_ms: float) -> Outcome:
    """Move a reminder to its time by `clock`; the outcome tells whether it was too late."""
    eta_ms = clock.real_ms(reminder.planned)
    if is_on_rabbitmq():
        if eta_ms <= now_ms and not wanted().has_started(reminder.task_id):
            return Outcome.PAST
        if eta_ms <= now_ms or not wanted().move(reminder.task_id, eta_ms):
            return Outcome.UNKNOWN
        # A second one with the same id. The one at the old time sets itself aside.
        send(reminder, clock, task_id=reminder.task_id)
        return Outcome.DONE
    try:
        return delayq.reschedule(reminder.task_id, eta=as_datetime(eta_ms))
    except InvalidETA:
        # The news came so late that the new time has also passed, so the reminder runs at once.
        return Outcome.PAST


class NewsDesk:
    """Changes the reminders of a flight when there is news of it, and records the outcomes."""

    def __init__(self, news: Iterable[News], clock: CompressedClock, records: Records) -> None:
        self._news = deque(news)
        self._clock = clock
        self._records = records
        self.cancelled = 0
        self.moved = 0

    @property
    def next_ms(self) -> float:
        """Time of the next news in real ms since 1970, infinite if there is none."""
        return self._clock.real_ms(self._news[0].known) if self._news else math.inf

    @property
    def is_done(self) -> bool:
        """Whether there is no more news."""
        return not self._news

    def apply_until(self, now_ms: float) -> None:
        """Apply all news until now."""
        while self.next_ms <= now_ms:
            flight = self._news.popleft().flight
            for kind in Kind:
                if flight.departed is None:
                    self._cancel(remind(kind, flight, flight.scheduled, self._clock.begins))
                else:
                    moved = remind(kind, flight, flight.departed, self._clock.begins)
                    self._move(moved, now_ms)

    def _cancel(self, reminder: Reminder) -> None:
        outcome = cancel(reminder)
        self.cancelled += outcome is Outcome.DONE
        self._records.add_change(reminder.task_id, "cancel", outcome.value)

    def _move(self, reminder: Reminder, now_ms: float) -> None:
        eta_ms = self._clock.real_ms(reminder.planned)
        outcome = move(reminder, self._clock, now_ms)
        self.moved += outcome is Outcome.DONE
        self._records.add_change(reminder.task_id, "move", outcome.value, eta_ms)
