"""Schedules by a wall clock that is set forward and back."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import BaseSchedule, crontab, schedule
from hypothesis import given
from hypothesis import strategies as st

from celery_delayq.periodic.rrule import rrule
from celery_delayq.periodic.schedules import Rule, rule_of
from celery_delayq.periodic.wall_clock import ms_of_datetime
from tests.support.periodic import UTC, ticks_of

ZONES = (
    *("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Sao_Paulo"),
    *("Pacific/Apia", "Africa/Casablanca", "UTC"),
)


def wall_clock(tick: int, zone: str) -> str:
    moment = datetime.fromtimestamp(tick / 1000, UTC).astimezone(ZoneInfo(zone))
    return moment.isoformat(" ", "minutes")


def ticks_shown(rule: Rule, at: datetime, zone: str, number: int) -> list[str]:
    """Return what the wall clock shows at the next ticks."""
    return [wall_clock(tick, zone) for tick in islice(ticks_of(rule, ms_of_datetime(at)), number)]


# -- a time that does not exist, and one that exists twice


@pytest.mark.parametrize(
    ("given_schedule", "zone", "since", "expected"),
    [
        pytest.param(
            crontab(minute="*/15"),
            "Europe/Berlin",
            "2024-03-31 01:30+01:00",
            ["2024-03-31 01:45+01:00", "2024-03-31 03:00+02:00", "2024-03-31 03:15+02:00"],
            id="several times that do not exist are one tick",
        ),
        pytest.param(
            crontab(minute="*/20"),
            "Europe/Berlin",
            "2024-10-27 02:20+02:00",
            ["2024-10-27 02:40+02:00", "2024-10-27 03:00+01:00", "2024-10-27 03:20+01:00"],
            id="an hour that comes again has no ticks the second time",
        ),
        pytest.param(
            crontab(minute="*/20"),
            "Europe/Berlin",
            "2024-10-27 02:05+01:00",
            ["2024-10-27 03:00+01:00"],
            id="nor is there one left when it has begun",
        ),
        pytest.param(
            crontab(minute=0, hour="*/6"),
            "Pacific/Apia",
            "2011-12-29 12:00-10:00",
            ["2011-12-29 18:00-10:00", "2011-12-31 00:00+14:00", "2011-12-31 06:00+14:00"],
            id="a day that is left out has one tick at its end",
        ),
        pytest.param(
            schedule(timedelta(days=1)),
            "Europe/Berlin",
            "2024-03-30 02:30+01:00",
            ["2024-03-31 03:30+02:00", "2024-04-01 03:30+02:00"],
            id="an interval does not heed the wall clock",
        ),
        pytest.param(
            schedule(timedelta(days=1), relative=True),
            "Europe/Berlin",
            "2024-03-30 14:45+01:00",
            ["2024-03-31 00:00+01:00", "2024-04-01 00:00+02:00", "2024-04-02 00:00+02:00"],
            id="days that are relative begin at midnight",
        ),
    ],
)
def test_the_next_ticks_when_clocks_are_set(
    given_schedule: BaseSchedule, zone: str, since: str, expected: list[str]
) -> None:
    at = datetime.fromisoformat(since)
    rule = rule_of(given_schedule, ZoneInfo(zone), ms_of_datetime(at))

    assert ticks_shown(rule, at, zone, len(expected)) == expected


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
                and (not found or found[-1] != ms_of_datetime(at))
            ):
                found.append(ms_of_datetime(at))
            passed += STEP
        latest_shown = max(latest_shown, shown)
        at += STEP
    return found


@pytest.mark.parametrize(
    ("zone", "year"), [*zip(ZONES, (2024, 2025, 2023, 2018, 2011, 2024, 2026), strict=True)]
)
def test_ticks_are_what_the_wall_clock_passes(zone: str, year: int) -> None:
    fields = {"hour": "0-3,23", "day_of_week": "0,1,5,6"}
    rule = "FREQ=DAILY;BYHOUR=0,1,2,3,23;BYMINUTE=0,30;BYSECOND=0;BYDAY=SU,MO,FR,SA"
    for minute, given_schedule in (
        ("*/10", crontab(minute="*/10", **fields)),
        ("0,30", rrule(rule)),
    ):
        expected = every_ten_minutes_of(zone, year, crontab(minute=minute, **fields))
        ticks = ticks_of(rule_of(given_schedule, ZoneInfo(zone), 0), expected[0] - 1)

        assert [*islice(ticks, len(expected))] == expected


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
    now = ms_of_datetime(at.replace(tzinfo=UTC))

    tick = rule.after(now)

    assert tick is not None
    assert now < tick <= now + 50 * 3_600_000
    shown = datetime.fromtimestamp(tick / 1000, UTC).astimezone(ZoneInfo(zone))
    if (shown.hour, shown.minute) != (hour, minute):  # it did not exist
        before = datetime.fromtimestamp(tick / 1000 - 60, UTC).astimezone(ZoneInfo(zone))
        assert before.replace(tzinfo=None) + timedelta(minutes=1) < shown.replace(tzinfo=None)
