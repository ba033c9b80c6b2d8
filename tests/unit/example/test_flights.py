"""The example's flights, its plan of reminders and its clock."""

from __future__ import annotations

import zipfile
from datetime import date, timedelta
from pathlib import Path

import pytest

from example_project.flights import FlightDataError, load_flights, midnight, thin_out
from example_project.plan import CompressedClock, Kind, as_datetime, plan
from tests.unit.example.flying import SNOW_STORM


def test_the_storm_has_the_flights_that_the_source_has() -> None:
    flights = load_flights(SNOW_STORM)

    assert len(flights) == len({flight.id for flight in flights}) == 979
    assert sum(flight.cancelled for flight in flights) == 180
    late = [f for f in flights if f.delay is not None and f.delay > timedelta(hours=1)]
    assert len(late) == 394
    assert flights == sorted(flights, key=lambda flight: (flight.scheduled, flight.id))


def test_times_are_right_on_the_days_when_the_clocks_change() -> None:
    for day, hours in ((date(2013, 3, 10), 23), (date(2013, 11, 3), 25), (date(2013, 7, 1), 24)):
        tomorrow = midnight(day + timedelta(days=1))
        assert tomorrow - midnight(day) == timedelta(hours=hours)
        for flight in load_flights(day):
            assert midnight(day) <= flight.scheduled < tomorrow
            assert flight.scheduled.date() == day


def test_every_flight_has_two_reminders_and_the_night_flight_is_sent_at_midnight() -> None:
    day = date(2013, 7, 27)
    flights = load_flights(day)

    reminders = plan(flights, midnight(day))

    assert len({reminder.task_id for reminder in reminders}) == 2 * len(flights)
    clamped = [reminder for reminder in reminders if reminder.clamped]
    assert [(r.kind, r.flight.id, r.planned) for r in clamped] == [
        (Kind.CHECK_IN, "2013-07-27-US-1632-EWR", midnight(day))
    ]
    assert min(reminder.planned for reminder in reminders) == midnight(day)


def test_a_compressed_clock_is_never_early_and_hits_whole_milliseconds() -> None:
    clock = CompressedClock(midnight(SNOW_STORM), starts_ms=1_000_000, seconds_per_day=60.0)

    assert clock.real_ms(clock.begins) == 1_000_000
    assert clock.real_ms(clock.begins + timedelta(days=1)) == 1_060_000
    assert clock.real_ms(clock.begins + timedelta(minutes=1)) == 1_000_042
    assert clock.flight_time(1_030_000) == clock.begins + timedelta(hours=12)
    assert as_datetime(1_000_042).timestamp() * 1000 == 1_000_042


def test_fewer_flights_are_spread_over_the_day() -> None:
    flights = load_flights(SNOW_STORM)

    few = thin_out(flights, 10)

    assert len(few) == 10
    assert few[0] == flights[0]
    assert few[-1].scheduled.hour >= 20
    assert thin_out(flights, 5_000) == flights


def test_a_damaged_file_is_refused_with_the_row(tmp_path: Path) -> None:
    path = tmp_path / "flights.csv.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "flights.csv", "year,month,day,sched_dep_time,time_hour\n2013,1,1,2561,x\n"
        )

    with pytest.raises(FlightDataError, match="2561"):
        load_flights(date(2013, 1, 1), path=path)
