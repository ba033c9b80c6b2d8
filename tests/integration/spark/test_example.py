"""The rows of the example's pipeline are those that plain Python makes of the same flights."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import functions as F

from example_project.flights import Flight, FlightDataError, load_flights, midnight, new_york
from example_project.plan import CompressedClock, as_datetime
from example_project.spark import placing, source

pytestmark = pytest.mark.nightly

#: Before, on and after the days on which the clocks change.
DAYS = [date(2013, 3, 9), date(2013, 3, 10), date(2013, 3, 11), date(2013, 11, 3)]
HALF_AN_HOUR = timedelta(minutes=30)


#: The last day of the year and the first one.
ENDS = [date(2013, 12, 31), date(2013, 1, 1)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data of a few days: those before, on and after which something changes."""
    whole = source.unpack(tmp_path_factory.mktemp("flights"))
    header, *lines = whole.read_text().splitlines(keepends=True)
    days = tuple(f"{day.year},{day.month},{day.day}," for day in (*DAYS, *ENDS))
    whole.write_text(header + "".join(line for line in lines if line.startswith(days)))
    return whole


@pytest.fixture(scope="module")
def flights(spark: Any, path: Path) -> Iterator[Any]:
    found = source.read_flights(spark, path, DAYS[0])
    yield found
    found.unpersist()


def of_days(frame: Any) -> Any:
    return frame.where(F.col("day").isin(*DAYS))


def expected() -> list[Flight]:
    return [flight for day in DAYS for flight in load_flights(day)]


def aware(moment: datetime) -> datetime:
    """Give the moment that Spark shows in the zone of this process."""
    return moment.astimezone(timezone.utc)


def test_all_flights_are_read_each_with_an_id_of_its_own(flights: Any) -> None:
    [counts] = flights.agg(
        F.count("*"),
        F.count_distinct("flight"),
        F.count_if(source.is_cancelled()),
        F.count_if(source.is_late()),
    ).collect()

    wanted = [*expected(), *(flight for day in ENDS for flight in load_flights(day))]
    late = [f for f in wanted if f.delay is not None and f.delay > timedelta()]
    cancelled = [f for f in wanted if f.cancelled]
    assert tuple(counts) == (len(wanted), len(wanted), len(cancelled), len(late))


def test_reminders_are_due_half_an_hour_before_the_departure_that_is_known(flights: Any) -> None:
    known = of_days(flights.withColumn("departure", source.departure_known()))
    rows = source.rows(known, placing.moved(source.reminded(), timedelta(weeks=700))).collect()

    found = {row.flight: row for row in rows}
    assert len(found) == len(expected())
    for flight in expected():
        row = found[flight.id]
        assert (row.carrier, row.number) == (flight.carrier, flight.number)
        assert (row.origin, row.destination) == (flight.origin, flight.destination)
        if flight.departed is None:
            assert (row.remind_at, row.departs) == (None, None)
            continue
        departs = max(flight.scheduled, flight.departed)
        assert aware(row.remind_at) == departs - HALF_AN_HOUR + timedelta(weeks=700)
        assert row.departs == f"{new_york(departs):%Y-%m-%d %H:%M}"


def test_a_compressed_day_is_that_of_the_clock(flights: Any) -> None:
    clock = CompressedClock(midnight(DAYS[1]), starts_ms=1_900_000_000_007, seconds_per_day=7.9)
    planned = of_days(flights).select(
        "flight", placing.compressed(F.col("scheduled"), clock).alias("at")
    )

    found = {row.flight: aware(row.at) for row in planned.collect()}

    assert found == {
        flight.id: as_datetime(clock.real_ms(flight.scheduled)) for flight in expected()
    }


def test_fewer_flights_are_those_from_a_day_on_and_january_follows_december(
    spark: Any, path: Path
) -> None:
    found = source.read_flights(spark, path, ENDS[0], limit=1000)

    wanted = [flight for day in ENDS for flight in load_flights(day)][:1000]
    assert len(load_flights(ENDS[0])) < 1000
    assert {row.flight for row in found.select("flight").collect()} == {f.id for f in wanted}
    found.unpersist()


def test_times_that_contradict_each_other_are_refused(
    spark: Any, path: Path, tmp_path: Path
) -> None:
    header, line, *_ = path.read_text().splitlines(keepends=True)
    assert line.endswith("2013-01-01T10:00:00Z\n")
    wrong = tmp_path / "flights.csv"
    wrong.write_text(header + line.replace("T10:", "T09:"))

    with pytest.raises(FlightDataError, match="2013-01-01-UA-1545-EWR does not leave within"):
        source.read_flights(spark, wrong, ENDS[1])
