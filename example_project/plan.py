"""The reminders of each flight and their times, on a clock that runs faster than the real one.

Policy only, without I/O. *Flight time* is the moment in 2013, *real time* the moment now. Real time
is in whole milliseconds of Redis' clock, which decides what is due.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from enum import Enum

from example_project.flights import Flight

DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
_MILLISECOND = timedelta(milliseconds=1)
_MICROSECOND = timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class Kind(str, Enum):
    """The kind of a reminder; the value is the first part of the task ids."""

    CHECK_IN = "check-in"
    BOARDING = "boarding"


# Early enough to check in on the way to the airport. Late enough that all flights except those
# before 03:00 (one in 2013) have both reminders on the day of their departure.
LEAD: dict[Kind, timedelta] = {
    Kind.CHECK_IN: timedelta(hours=3),
    Kind.BOARDING: timedelta(minutes=30),
}

#: Seconds of real time before each further attempt at a webhook: a day is short here.
RETRY_INTERVALS = (0.2, 0.5, 1.0)

#: Most webhooks that a receiver gets at once. Other threads of the workers stay free for reminders.
WEBHOOKS_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Reminder:
    """A task to schedule at `planned` flight time; `clamped` if this was moved to the start."""

    kind: Kind
    flight: Flight
    planned: datetime
    clamped: bool = False

    @property
    def task_id(self) -> str:
        """An id made of kind and flight, so that the task can be found again later."""
        return f"{self.kind.value}:{self.flight.id}"


def webhook_id(task_id: str) -> str:
    """Return the id of the webhook that a reminder sends.

    It is made of the reminder's id. A reminder that runs again, since its worker was killed, sends
    the same id again, and the receiver recognizes it.
    """
    return f"webhook-{task_id.replace(':', '-')}"


@dataclass(frozen=True, slots=True)
class CompressedClock:
    """Maps flight time to real time.

    `begins` happens at `starts_ms` (milliseconds since 1970), and 24 hours of flight time take
    `seconds_per_day` of real time.
    """

    begins: datetime
    starts_ms: int
    seconds_per_day: float

    @property
    def hour_ms(self) -> int:
        """The real milliseconds of an hour; exact if the day is from `in_whole_hours`."""
        return round(self.seconds_per_day * 1000) // 24

    def real_ms(self, moment: datetime) -> int:
        """Return the first whole millisecond since 1970 at which `moment` has come."""
        # In whole microseconds of flight time: a float would make some ETAs a millisecond late.
        elapsed = (moment - self.begins) // _MICROSECOND
        per_day = round(self.seconds_per_day * 1000)
        return self.starts_ms - (-elapsed * per_day) // (DAY // _MICROSECOND)

    def flight_time(self, real_ms: float) -> datetime:
        """Return the flight time at a real time in milliseconds, the inverse of `real_ms`."""
        return self.begins + (real_ms - self.starts_ms) / 1000 / self.seconds_per_day * DAY


def in_whole_hours(seconds_per_day: float) -> float:
    """Lengthen a day by less than 24 ms, so that an hour takes whole milliseconds.

    Intervals of periodic entries are whole milliseconds: ticks would drift from an hour of 833.3
    ms.
    """
    return -(-round(seconds_per_day * 1000) // 24) * 24 / 1000


def as_datetime(real_ms: int) -> datetime:
    """Return milliseconds since 1970 as an aware time for ``apply_async(eta=…)``."""
    return _EPOCH + real_ms * _MILLISECOND


def as_ms(moment: datetime) -> int:
    """Return the whole milliseconds since 1970 of an aware time."""
    return (moment - _EPOCH) // _MILLISECOND


def remind(kind: Kind, flight: Flight, departure: datetime, begins: datetime) -> Reminder:
    """Plan one reminder for a flight that leaves at `departure`, not before `begins`."""
    moment = departure - LEAD[kind]
    return Reminder(kind, flight, max(moment, begins), clamped=moment < begins)


def plan(flights: Iterable[Flight], begins: datetime) -> list[Reminder]:
    """Plan one reminder of each kind for every flight, the earliest first.

    Cancelled flights have reminders too: when these are scheduled, nobody knows of the
    cancellation. A reminder before `begins` is sent at `begins`, so every flight has two reminders.
    """
    reminders = [
        remind(kind, flight, flight.scheduled, begins) for flight in flights for kind in LEAD
    ]
    return sorted(reminders, key=lambda reminder: (reminder.planned, reminder.task_id))
