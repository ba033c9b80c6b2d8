"""The example's traffic reports: each hour is counted once, and a wrong count is found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from unittest.mock import Mock, call

import pytest

from example_project import tasks
from example_project.flights import load_flights, midnight
from example_project.plan import HOUR, CompressedClock, in_whole_hours
from example_project.tower import Tower
from example_project.traffic import (
    Movement,
    Report,
    ended_hour,
    hour_of,
    hours_of,
    movement_of,
    report_on,
    table_rows,
    tick_id,
    total,
    traffic_problems,
)
from tests.unit.example.flying import BEGINS, CLOCK, SNOW_STORM, at, flight

# Hour 0: early and on time; hour 1: none; hour 2: cancelled, and late by 14 and by 80 minutes.
FLIGHTS = [
    flight("A", at(0, 5), late=-3),
    flight("B", at(0, 59), late=0),
    flight("C", at(2, 10), late=None),
    flight("D", at(2, 20), late=14),
    flight("E", at(1, 30), late=80),
]
REPORTS = [
    Report(0, tick_id(0, CLOCK), flights=2, cancelled=0, late=0, delay_min=-3),
    Report(1, tick_id(1, CLOCK), flights=0, cancelled=0, late=0, delay_min=0),
    Report(2, tick_id(2, CLOCK), flights=3, cancelled=1, late=1, delay_min=94),
]


def wrong_with(
    reports: Sequence[Report] = REPORTS, runs: dict[str, int] | None = None, ticks: int = 3
) -> list[str]:
    runs = {report.task_id: 1 for report in REPORTS} if runs is None else runs
    return traffic_problems(reports, runs, FLIGHTS, CLOCK, ticks=ticks)


def test_a_flight_counts_when_it_leaves_and_a_cancelled_one_when_it_was_to_leave() -> None:
    assert [hour_of(each, BEGINS) for each in FLIGHTS] == [0, 0, 2, 2, 2]
    assert hour_of(flight("F", at(23, 50), late=15), BEGINS) == 24, "the hour after midnight"
    assert hour_of(flight("G", at(0, 1), late=-5), BEGINS) == 0, "it left on the day before"
    assert hours_of(FLIGHTS, BEGINS) == 3


def test_a_report_counts_what_left_what_was_cancelled_and_how_late_it_was() -> None:
    report = report_on(2, tick_id(2, CLOCK), map(movement_of, FLIGHTS[2:]))

    assert report == REPORTS[2]
    assert (report.departed, report.mean_delay_min) == (2, 47.0)


def test_there_is_no_mean_delay_where_nothing_left() -> None:
    report = report_on(0, tick_id(0, CLOCK), [Movement("A", None)])

    assert (report.flights, report.cancelled, report.departed) == (1, 1, 0)
    assert report.mean_delay_min is None


def test_reports_are_added_up_and_their_means_are_weighed() -> None:
    sums = total(REPORTS)

    assert (sums.flights, sums.cancelled, sums.departed, sums.late) == (5, 1, 4, 1)
    assert sums.mean_delay_min == 91 / 4
    assert total([]).mean_delay_min is None


@pytest.mark.parametrize("seconds_per_day", [1.0, 7.7, 20.0, 59.999, 60.0, 86_400.0])
def test_an_hour_is_in_whole_milliseconds_and_its_tick_says_which_it_was(
    seconds_per_day: float,
) -> None:
    clock = CompressedClock(BEGINS, 1_795_244_780_123, in_whole_hours(seconds_per_day))

    assert 0 <= clock.seconds_per_day - seconds_per_day < 0.024
    for hour in (0, 1, 23, 24, 99, 8_759):
        ends_ms = clock.starts_ms + (hour + 1) * clock.hour_ms
        assert clock.real_ms(BEGINS + (hour + 1) * HOUR) == ends_ms
        for moment in (ends_ms, ends_ms + clock.hour_ms - 1):
            id = f"traffic-report:{moment}"
            assert ended_hour(id, clock.starts_ms, clock.hour_ms) == hour
        assert tick_id(hour, clock) == f"traffic-report:{ends_ms}"


def test_the_tower_writes_down_what_has_left_and_says_afterwards_that_it_has() -> None:
    records = Mock(["add_movement", "set_complete_until"])
    tower = Tower(FLIGHTS, CLOCK, records)
    assert tower.next_ms == CLOCK.real_ms(at(0, 2))

    tower.record_until(now_ms=CLOCK.real_ms(at(0, 2)) - 0.1)
    tower.record_until(now_ms=CLOCK.real_ms(at(2, 10)))
    assert tower.next_ms == CLOCK.real_ms(at(2, 34))
    tower.record_until(now_ms=CLOCK.real_ms(at(3)))

    assert records.mock_calls == [
        call.set_complete_until(CLOCK.real_ms(at(0, 2)) - 0.1),
        call.add_movement(0, Movement("A", -3)),
        call.add_movement(0, Movement("B", 0)),
        call.add_movement(2, Movement("C", None)),
        call.set_complete_until(1_000_130),
        call.add_movement(2, Movement("D", 14)),
        call.add_movement(2, Movement("E", 80)),
        call.set_complete_until(1_000_180),
    ]
    assert tower.next_ms == float("inf")


@pytest.mark.parametrize("looks", [0, 3])
def test_a_report_waits_until_its_hour_is_written_down_and_counts_the_hour_of_its_tick(
    looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = Mock(["is_complete_until", "movements", "add_report"])
    records.is_complete_until.side_effect = [*[False] * looks, True, True]
    records.movements.side_effect = lambda hour: [
        movement_of(each) for each in FLIGHTS if hour_of(each, BEGINS) == hour
    ]
    monkeypatch.setattr(tasks, "records", lambda: records)
    kwargs = {"starts_ms": CLOCK.starts_ms, "hour_ms": CLOCK.hour_ms}

    for _ in range(2):  # a worker that is killed before it says so has it run again
        tasks.traffic_report.apply(kwargs=kwargs, task_id=tick_id(2, CLOCK)).get()

    assert records.add_report.mock_calls == [call(REPORTS[2])] * 2
    assert records.is_complete_until.mock_calls == [call(CLOCK.real_ms(at(3)))] * (looks + 2)


def test_reports_that_are_right_have_no_problems() -> None:
    assert wrong_with() == []


def test_an_hour_without_report_is_found_by_its_flights_too() -> None:
    assert wrong_with(REPORTS[::2]) == ["1 traffic reports are missing"], "it had no flights"
    assert wrong_with(REPORTS[:2]) == [
        "1 traffic reports are missing",
        "flights: 2 in the traffic reports, 5 in the data",
        "cancelled flights: 0 in the traffic reports, 1 in the data",
        "late flights: 0 in the traffic reports, 1 in the data",
        "minutes of delay: -3 in the traffic reports, 91 in the data",
    ]


def test_no_reports_at_all_are_found() -> None:
    assert wrong_with([], {}, ticks=0)[0] == "3 traffic reports are missing"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({3: replace(REPORTS[1], hour=3, task_id=tick_id(3, CLOCK))}, "are of no hour of the"),
        ({3: REPORTS[1]}, "1 traffic reports are of an hour that has"),
        (
            {0: replace(REPORTS[0], flights=1), 1: replace(REPORTS[1], flights=1)},
            "2 traffic reports count more or fewer flights than their hour had",
        ),
        (
            {0: replace(REPORTS[0], task_id=tick_id(1, CLOCK))},
            "1 traffic reports are not from the tick at the end of their hour",
        ),
        ({0: replace(REPORTS[0], late=1)}, "late flights: 2 in the traffic reports, 1 in the data"),
        ({0: replace(REPORTS[0], delay_min=0)}, "minutes of delay: 94 in the traffic reports, 91"),
        ({2: replace(REPORTS[2], cancelled=2)}, "cancelled flights: 2 in the traffic reports, 1"),
    ],
)
def test_a_wrong_report_is_found(changes: dict[int, Report], problem: str) -> None:
    reports = dict(enumerate(REPORTS)) | changes

    (found,) = wrong_with([*reports.values()])

    assert problem in found


def test_what_ran_again_or_at_another_time_or_was_fired_too_often_is_found() -> None:
    runs = {report.task_id: 1 for report in REPORTS}

    assert wrong_with(runs={**runs, tick_id(0, CLOCK): 2}) == [
        "1 traffic reports were made more than once"
    ]
    assert wrong_with(runs={**runs, "traffic-report:1000061": 1}) == [
        "1 traffic reports were made at another time than the end of an hour"
    ]
    assert wrong_with(ticks=4) == ["4 ticks of traffic-report were fired, for 3 hours"]


@pytest.mark.parametrize("day", [SNOW_STORM, date(2013, 3, 10), date(2013, 11, 3)])
def test_the_reports_of_a_real_day_add_up_to_its_flights(day: date) -> None:
    flights, clock = load_flights(day), replace(CLOCK, begins=midnight(day))
    reports = [
        report_on(
            hour,
            tick_id(hour, clock),
            (movement_of(each) for each in flights if hour_of(each, clock.begins) == hour),
        )
        for hour in range(hours_of(flights, clock.begins))
    ]
    runs = {report.task_id: 1 for report in reports}

    assert traffic_problems(reports, runs, flights, clock, ticks=len(reports)) == []
    assert total(reports).flights == len(flights)


def test_quiet_hours_are_one_row_and_the_others_one_each() -> None:
    quiet = [Report(hour, "", 0, 0, 0, 0) for hour in range(5)]
    busy = [Report(hour, "", 1, 0, 0, 0) for hour in (5, 6, 23, 24)]

    rows = table_rows([*quiet, *busy], BEGINS, by_day=False)

    names = ["Fri 00-05", "Fri 05-06", "Fri 06-07", "Fri 23-24", "Sat 00-01"]
    assert [name for name, _ in rows] == names
    assert [len(row) for _, row in rows] == [5, 1, 1, 1, 1]


def test_rows_of_days_have_the_hours_that_the_day_has() -> None:
    reports = [Report(hour, "", 1, 0, 0, 0) for hour in range(24 + 23 + 2)]

    rows = table_rows(reports, midnight(date(2013, 3, 9)), by_day=True)

    sizes = {name: len(row) for name, row in rows}
    assert sizes == {"Sat 09 Mar": 24, "Sun 10 Mar": 23, "Mon 11 Mar": 2}


def test_an_hour_that_the_clock_leaves_out_is_no_row() -> None:
    reports = [Report(hour, "", 1, 0, 0, 0) for hour in (1, 2)]

    rows = table_rows(reports, midnight(date(2013, 3, 10)), by_day=False)

    assert [name for name, _ in rows] == ["Sun 01-02", "Sun 03-04"]
