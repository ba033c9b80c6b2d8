"""The hourly traffic report: the hour of a flight, the counts, and their check.

Policy only, without I/O. An *hour* is a number: 0 is the first one of the replayed day.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby

from example_project.flights import Flight, new_york
from example_project.news import LATE_DELAY
from example_project.plan import HOUR, CompressedClock

NAME = "traffic-report"

_MINUTE = timedelta(minutes=1)
_LATE_MIN = LATE_DELAY // _MINUTE


@dataclass(frozen=True, slots=True)
class Movement:
    """A flight left `delay_min` minutes late (negative: early), or was cancelled: `None`."""

    flight: str
    delay_min: int | None


@dataclass(frozen=True, slots=True)
class Report:
    """The traffic of one or several hours: `late` flights left at least 15 minutes late.

    `flights` = departed ones + `cancelled`; `delay_min` is the sum of the delays of the departed
    ones. `task_id` is the id of the task that has counted.
    """

    hour: int
    task_id: str
    flights: int
    cancelled: int
    late: int
    delay_min: int

    @property
    def departed(self) -> int:
        """Number of departed flights."""
        return self.flights - self.cancelled

    @property
    def mean_delay_min(self) -> float | None:
        """Mean delay in minutes, `None` if no flight departed."""
        return self.delay_min / self.departed if self.departed else None


def moment_of(flight: Flight, begins: datetime) -> datetime:
    """Return when a flight counts: when it left, or was scheduled to leave if it is cancelled.

    A flight of the first minutes that left early, on the day before, counts at the beginning.
    """
    return max(flight.departed or flight.scheduled, begins)


def hour_of(flight: Flight, begins: datetime) -> int:
    """Return the hour in which a flight counts."""
    return (moment_of(flight, begins) - begins) // HOUR


def hours_of(flights: Iterable[Flight], begins: datetime) -> int:
    """Count the hours until the last flight has left."""
    return 1 + max(hour_of(flight, begins) for flight in flights)


def movement_of(flight: Flight) -> Movement:
    """Return the record of a flight that has left, or was scheduled to leave and is cancelled."""
    return Movement(flight.id, None if flight.delay is None else flight.delay // _MINUTE)


def ended_hour(task_id: str, starts_ms: int, hour_ms: int) -> int:
    """Return the hour that had just ended at the tick of a task.

    The tick is in the id, ``<name>:<ms since 1970>``. So a task counts the same hour even if it
    runs late or again.
    """
    return (int(task_id.rpartition(":")[2]) - starts_ms) // hour_ms - 1


def tick_id(hour: int, clock: CompressedClock) -> str:
    """Return the id of the task that reports on an hour: its tick is at the end of the hour."""
    return f"{NAME}:{clock.real_ms(clock.begins + (hour + 1) * HOUR)}"


def report_on(hour: int, task_id: str, movements: Iterable[Movement]) -> Report:
    """Count the movements of an hour."""
    delays = [movement.delay_min for movement in movements]
    left = [delay for delay in delays if delay is not None]
    return Report(
        hour,
        task_id,
        flights=len(delays),
        cancelled=len(delays) - len(left),
        late=sum(delay >= _LATE_MIN for delay in left),
        delay_min=sum(left),
    )


def total(reports: Sequence[Report]) -> Report:
    """Add up reports; hour and id are those of the first."""
    return Report(
        reports[0].hour if reports else 0,
        reports[0].task_id if reports else "",
        flights=sum(report.flights for report in reports),
        cancelled=sum(report.cancelled for report in reports),
        late=sum(report.late for report in reports),
        delay_min=sum(report.delay_min for report in reports),
    )


def table_rows(
    reports: Sequence[Report], begins: datetime, *, by_day: bool
) -> list[tuple[str, Sequence[Report]]]:
    """Return the rows of a table from reports, each with its hours or its day in New York.

    A row is a day, or an hour, or several consecutive quiet hours.
    """

    def key(report: Report) -> object:
        if by_day:
            return _wall(report.hour, begins).date()
        return "quiet" if report.flights == 0 else report.hour

    rows = [[*some] for _, some in groupby(reports, key)]
    return [(_name([each.hour for each in row], begins, by_day=by_day), row) for row in rows]


def traffic_problems(
    reports: Sequence[Report],
    runs: Mapping[str, int],
    flights: Sequence[Flight],
    clock: CompressedClock,
    *,
    ticks: int,
) -> list[str]:
    """Return a sentence for each error in the reports; an empty list means no error.

    `runs` is how often each task has reported, by its id, and `ticks` is the entry's own count. The
    expected counts come from `flights`, and not from the records of movements.
    """
    hours = range(hours_of(flights, clock.begins))
    per_hour = Counter(hour_of(flight, clock.begins) for flight in flights)
    found = Counter(report.hour for report in reports)
    sums = [
        f"{name}: {counted} in the traffic reports, {right} in the data"
        for name, counted, right in _compare(total(reports), flights)
        if counted != right
    ]
    if ticks != len(hours):
        sums.append(f"{ticks} ticks of {NAME} were fired, for {len(hours)} hours")
    return [
        *(
            f"{count} traffic reports {what}"
            for count, what in (
                (len({*hours} - found.keys()), "are missing"),
                (len(found.keys() - {*hours}), "are of no hour of the flights"),
                (sum(number > 1 for number in found.values()), "are of an hour that has another"),
                (
                    sum(report.flights != per_hour[report.hour] for report in reports),
                    "count more or fewer flights than their hour had",
                ),
                (
                    sum(report.task_id != tick_id(report.hour, clock) for report in reports),
                    "are not from the tick at the end of their hour",
                ),
                (
                    len(runs.keys() - {tick_id(hour, clock) for hour in hours}),
                    "were made at another time than the end of an hour",
                ),
                (sum(number > 1 for number in runs.values()), "were made more than once"),
            )
            if count
        ),
        *sums,
    ]


def _wall(hour: int, begins: datetime) -> datetime:
    return new_york(begins + hour * HOUR)


def _name(hours: Sequence[int], begins: datetime, *, by_day: bool) -> str:
    first, last = _wall(hours[0], begins), _wall(hours[-1], begins)
    return f"{first:%a %d %b}" if by_day else f"{first:%a %H}-{last.hour + 1:02}"


def _compare(counted: Report, flights: Sequence[Flight]) -> list[tuple[str, int, int]]:
    delays = [flight.delay for flight in flights if flight.delay is not None]
    minutes = sum(delays, timedelta()) // _MINUTE
    return [
        ("flights", counted.flights, len(flights)),
        ("cancelled flights", counted.cancelled, len(flights) - len(delays)),
        ("late flights", counted.late, sum(delay >= LATE_DELAY for delay in delays)),
        ("minutes of delay", counted.delay_min, minutes),
    ]
