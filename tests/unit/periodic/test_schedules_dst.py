"""Schedules by a wall clock that is set forward and back."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import crontab, schedule
from hypothesis import given
from hypothesis import strategies as st

from celery_delayq.periodic.schedules import Rule, rrule, rule_of

UTC = timezone.utc

ZONES = [
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "America/Sao_Paulo",
    "Pacific/Apia",
    "Africa/Casablanca",
    "UTC",
]


def ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def wall_clock(tick: int, zone: str) -> str:
    moment = datetime.fromtimestamp(tick / 1000, UTC).astimezone(ZoneInfo(zone))
    return moment.isoformat(" ", "minutes")


def ticks_after(rule: Rule, local: str, zone: str, number: int) -> list[str]:
    """Return what the wall clock shows at the next ticks."""
    at = ms(datetime.fromisoformat(local).replace(tzinfo=ZoneInfo(zone)))
    found = []
    for _ in range(number):
        tick = rule.after(at)
        assert tick is not None
        found.append(wall_clock(tick, zone))
        at = tick
    return found


# -- a time that does not exist, and one that exists twice


@pytest.mark.parametrize(
    ("zone", "hour", "minute", "since", "expected"),
    [
        (
            "Europe/Berlin",
            2,
            30,
            "2024-03-30 02:30",
            ["2024-03-31 03:00+02:00", "2024-04-01 02:30+02:00"],
        ),
        (
            "Europe/Berlin",
            2,
            30,
            "2024-10-26 02:30",
            ["2024-10-27 02:30+02:00", "2024-10-28 02:30+01:00"],
        ),
        (
            "America/New_York",
            2,
            15,
            "2025-03-08 02:15",
            ["2025-03-09 03:00-04:00", "2025-03-10 02:15-04:00"],
        ),
        (
            "America/New_York",
            1,
            15,
            "2025-11-01 01:15",
            ["2025-11-02 01:15-04:00", "2025-11-03 01:15-05:00"],
        ),
        (  # half an hour only
            "Australia/Lord_Howe",
            2,
            15,
            "2024-10-05 02:15",
            ["2024-10-06 02:30+11:00", "2024-10-07 02:15+11:00"],
        ),
        (
            "Australia/Lord_Howe",
            1,
            45,
            "2024-04-06 01:45",
            ["2024-04-07 01:45+11:00", "2024-04-08 01:45+10:30"],
        ),
        (  # at midnight
            "America/Sao_Paulo",
            0,
            0,
            "2018-11-03 00:00",
            ["2018-11-04 01:00-02:00", "2018-11-05 00:00-02:00"],
        ),
        (
            "America/Sao_Paulo",
            23,
            30,
            "2018-02-16 23:30",
            ["2018-02-17 23:30-02:00", "2018-02-18 23:30-03:00"],
        ),
        (  # a day that was left out
            "Pacific/Apia",
            10,
            0,
            "2011-12-29 10:00",
            ["2011-12-31 00:00+14:00", "2011-12-31 10:00+14:00"],
        ),
        (  # set back for the month of Ramadan
            "Africa/Casablanca",
            2,
            30,
            "2024-03-09 02:30",
            ["2024-03-10 02:30+01:00", "2024-03-11 02:30+00:00"],
        ),
        (
            "Africa/Casablanca",
            2,
            30,
            "2024-04-13 02:30",
            ["2024-04-14 03:00+01:00", "2024-04-15 02:30+01:00"],
        ),
    ],
)
def test_a_time_is_once_a_day_even_if_it_does_not_exist_or_exists_twice(
    zone: str, hour: int, minute: int, since: str, expected: list[str]
) -> None:
    daily = crontab(hour=hour, minute=minute)
    by_rule = rrule(f"FREQ=DAILY;BYHOUR={hour};BYMINUTE={minute};BYSECOND=0")

    for given_schedule in (daily, by_rule):
        rule = rule_of(given_schedule, ZoneInfo(zone), 0)
        assert ticks_after(rule, since, zone, 2) == expected


def test_several_times_that_do_not_exist_are_one_tick() -> None:
    rule = rule_of(crontab(minute="*/15"), ZoneInfo("Europe/Berlin"), 0)

    assert ticks_after(rule, "2024-03-31 01:30", "Europe/Berlin", 3) == [
        "2024-03-31 01:45+01:00",
        "2024-03-31 03:00+02:00",
        "2024-03-31 03:15+02:00",
    ]


def test_an_hour_that_comes_again_has_no_ticks_the_second_time() -> None:
    rule = rule_of(crontab(minute="*/20"), ZoneInfo("Europe/Berlin"), 0)

    assert ticks_after(rule, "2024-10-27 02:20", "Europe/Berlin", 3) == [
        "2024-10-27 02:40+02:00",
        "2024-10-27 03:00+01:00",
        "2024-10-27 03:20+01:00",
    ]


def test_asked_within_the_hour_that_came_again_the_next_tick_is_behind_it() -> None:
    rule = rule_of(crontab(minute="*/20"), ZoneInfo("Europe/Berlin"), 0)
    again = datetime(2024, 10, 27, 1, 5, tzinfo=UTC)

    tick = rule.after(ms(again))

    assert tick is not None
    assert wall_clock(tick, "Europe/Berlin") == "2024-10-27 03:00+01:00"


def test_a_day_that_is_left_out_has_one_tick_at_its_end() -> None:
    rule = rule_of(crontab(minute=0, hour="*/6"), ZoneInfo("Pacific/Apia"), 0)

    assert ticks_after(rule, "2011-12-29 12:00", "Pacific/Apia", 3) == [
        "2011-12-29 18:00-10:00",
        "2011-12-31 00:00+14:00",
        "2011-12-31 06:00+14:00",
    ]


def test_an_interval_does_not_heed_the_wall_clock() -> None:
    start = datetime(2024, 3, 30, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    rule = rule_of(schedule(timedelta(days=1)), ZoneInfo("Europe/Berlin"), ms(start))

    assert ticks_after(rule, "2024-03-30 02:30", "Europe/Berlin", 2) == [
        "2024-03-31 03:30+02:00",
        "2024-04-01 03:30+02:00",
    ]


def test_days_that_are_relative_begin_at_midnight_of_the_wall_clock() -> None:
    start = datetime(2024, 3, 30, 14, 45, tzinfo=ZoneInfo("Europe/Berlin"))
    daily = schedule(timedelta(days=1), relative=True)
    rule = rule_of(daily, ZoneInfo("Europe/Berlin"), ms(start))

    assert ticks_after(rule, "2024-03-30 14:45", "Europe/Berlin", 3) == [
        "2024-03-31 00:00+01:00",
        "2024-04-01 00:00+02:00",
        "2024-04-02 00:00+02:00",
    ]


# -- years, against going through them

#: No clock was set by anything else than a multiple of it.
STEP = timedelta(minutes=10)


def every_ten_minutes_of(zone: str, year: int, matching: crontab) -> list[int]:
    """Return the ticks of a year by looking at what the wall clock shows, again and again."""
    place = ZoneInfo(zone)
    at, end = (datetime(each, 1, 1, tzinfo=UTC) for each in (year, year + 1))
    found: list[int] = []
    latest_shown = (at - STEP).astimezone(place).replace(tzinfo=None)
    while at < end:
        shown = at.astimezone(place).replace(tzinfo=None)
        # All that the clock passed since, which is more than a step where it was set forward.
        passed = latest_shown + STEP
        while passed <= shown:
            if (
                passed.minute in matching.minute
                and passed.hour in matching.hour
                and passed.isoweekday() % 7 in matching.day_of_week
                and (not found or found[-1] != ms(at))
            ):
                found.append(ms(at))
            passed += STEP
        latest_shown = max(latest_shown, shown)
        at += STEP
    return found


@pytest.mark.parametrize(
    ("zone", "year"),
    [
        ("Europe/Berlin", 2024),
        ("America/New_York", 2025),
        ("Australia/Lord_Howe", 2023),
        ("America/Sao_Paulo", 2018),
        ("Pacific/Apia", 2011),
        ("Africa/Casablanca", 2024),
        ("UTC", 2026),
    ],
)
def test_ticks_are_what_the_wall_clock_passes(zone: str, year: int) -> None:
    given_schedule = crontab(minute="*/10", hour="0-3,23", day_of_week="0,1,5,6")
    expected = every_ten_minutes_of(zone, year, given_schedule)
    rule = rule_of(given_schedule, ZoneInfo(zone), 0)

    found: list[int] = []
    tick = rule.after(expected[0] - 1)
    while tick is not None and tick <= expected[-1]:
        found.append(tick)
        tick = rule.after(tick)

    assert found == expected


@given(
    zone=st.sampled_from(ZONES),
    at=st.datetimes(datetime(2005, 1, 1), datetime(2035, 1, 1)),
    minute=st.integers(0, 59),
    hour=st.integers(0, 23),
)
def test_a_daily_time_is_once_on_every_day_that_has_a_wall_clock(
    zone: str, at: datetime, minute: int, hour: int
) -> None:
    rule = rule_of(crontab(minute=minute, hour=hour), ZoneInfo(zone), 0)
    now = ms(at.replace(tzinfo=UTC))

    tick = rule.after(now)

    assert tick is not None
    assert now < tick <= now + 50 * 3_600_000
    shown = datetime.fromtimestamp(tick / 1000, UTC).astimezone(ZoneInfo(zone))
    if (shown.hour, shown.minute) != (hour, minute):  # it did not exist
        before = datetime.fromtimestamp(tick / 1000 - 60, UTC).astimezone(ZoneInfo(zone))
        assert before.replace(tzinfo=None) + timedelta(minutes=1) < shown.replace(tzinfo=None)
