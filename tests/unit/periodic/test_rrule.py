"""Rules of RFC 5545 that have no times, or none any more before the calendar ends."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from time import process_time

import pytest

from celery_delayq.errors import InvalidSchedule
from celery_delayq.periodic.definition import Definition
from celery_delayq.periodic.policy import begin, upcoming
from celery_delayq.periodic.rrule import rrule
from celery_delayq.periodic.wall_clock import datetime_of_ms
from tests.support.periodic import NOON_MS, UTC

LAST = datetime.max.replace(tzinfo=timezone(-timedelta(hours=9)))


def ticks(text: str, zone: str = "UTC") -> list[str]:
    definition = Definition.from_fields(rrule(text), name="a", task="t", timezone=zone)
    found = upcoming(begin(definition, NOON_MS, UTC), 3, UTC)
    return [f"{datetime_of_ms(tick):%Y-%m-%d %H:%M:%S}" for tick in found]


@pytest.mark.parametrize("freq", ["SECONDLY", "MINUTELY", "DAILY"])
def test_a_rule_that_takes_others_times_away_is_refused(freq: str) -> None:
    with pytest.raises(InvalidSchedule, match=r"EXRULE is not taken.* leave out times by EXDATE"):
        rrule(f"RRULE:FREQ={freq}\nEXRULE:FREQ={freq}")


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("FREQ=SECONDLY;BYSETPOS=2", 1),
        ("FREQ=SECONDLY;BYSECOND=1,2;BYSETPOS=-2", 1),
        ("FREQ=MINUTELY;BYSETPOS=2", 1),
        ("FREQ=MINUTELY;BYSECOND=0,30;BYSETPOS=3,-3", 2),
        ("FREQ=HOURLY;BYMINUTE=0,30;BYSECOND=1,2;BYSETPOS=5", 4),
        ("FREQ=DAILY;BYHOUR=9,17;BYSETPOS=3", 2),
        ("FREQ=WEEKLY;BYSETPOS=8", 7),
        ("FREQ=MONTHLY;BYSETPOS=32", 31),
    ],
)
def test_a_place_that_no_period_has_is_refused(text: str, most: int) -> None:
    with pytest.raises(InvalidSchedule, match=f"never matches: .* BYSETPOS of at most {most},"):
        rrule(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FREQ=SECONDLY;BYSETPOS=1", "2026-03-02 12:00:01"),
        ("FREQ=MINUTELY;BYSECOND=0,30;BYSETPOS=2,9", "2026-03-02 12:00:30"),
        ("FREQ=HOURLY;BYMINUTE=0,30;BYSECOND=1,2;BYSETPOS=-4", "2026-03-02 12:00:01"),
        ("FREQ=DAILY;BYHOUR=9,17;BYSETPOS=2", "2026-03-02 17:00:00"),
        ("FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1", "2026-03-31 12:00:00"),
    ],
)
def test_a_place_that_a_period_has_is_taken(text: str, expected: str) -> None:
    assert ticks(text)[0] == expected


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York"])
@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("FREQ=DAILY;INTERVAL=1000000", 2),
        ("FREQ=WEEKLY;INTERVAL=31622400", 0),
        ("FREQ=MONTHLY;INTERVAL=31622400", 0),
        ("FREQ=YEARLY;INTERVAL=31622400", 0),
        ("DTSTART:99980301T000000\nRRULE:FREQ=YEARLY", 2),
        ("DTSTART:99980301T000000\nRRULE:FREQ=YEARLY;COUNT=1", 1),
    ],
)
def test_a_rule_ends_with_the_calendar(text: str, number: int, zone: str) -> None:
    assert len(ticks(text, zone)) == number


@pytest.mark.parametrize("start", [datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))), LAST])
def test_a_start_beyond_the_calendar_is_refused(start: datetime) -> None:
    with pytest.raises(InvalidSchedule, match="out of range"):
        rrule("FREQ=DAILY", start)


@pytest.mark.parametrize(
    "text",
    [
        "DTSTART:20200101T000000",
        "FREQ=HOURLY;BYHOUR=25",
        "FREQ=SECONDLY;BYSECOND=60",
        "FREQ=YEARLY;BYDAY=60MO",
        "FREQ=YEARLY;BYEASTER=900",
        "FREQ=DAILY;INTERVAL=" + "9" * 100,
    ],
)
def test_what_is_seen_only_when_it_is_gone_through_is_refused(text: str) -> None:
    with pytest.raises(InvalidSchedule, match=r"^rrule"):
        rrule(text)


@pytest.mark.parametrize(
    "freq", ["YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY"]
)
@pytest.mark.parametrize(
    "times", ["", ";BYHOUR=5", ";BYHOUR=5;BYMINUTE=7", ";BYHOUR=23;BYSECOND=59"]
)
@pytest.mark.parametrize(
    "days", ["BYMONTH=2;BYMONTHDAY=30", "BYMONTH=6;BYYEARDAY=366", "BYWEEKNO=53;BYMONTH=6"]
)
def test_a_rule_without_any_time_is_refused_soon(freq: str, times: str, days: str) -> None:
    begun = process_time()

    with pytest.raises(InvalidSchedule, match="never matches: there is no such time"):
        rrule(f"FREQ={freq};{days}{times}")

    assert process_time() - begun < 1


@pytest.mark.parametrize(
    "text", ["FREQ=SECONDLY;BYHOUR=23;BYMONTH=12", "FREQ=MINUTELY;BYHOUR=5;BYYEARDAY=366"]
)
def test_a_rule_that_has_times_is_taken_soon(text: str) -> None:
    begun = process_time()

    rrule(text)

    assert process_time() - begun < 1
