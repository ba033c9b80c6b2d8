"""When schedules are due."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import islice, takewhile
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedstate, schedule, solar
from hypothesis import given
from hypothesis import strategies as st

from celery_delayq.errors import InvalidSchedule
from celery_delayq.periodic.rrule import rrule
from celery_delayq.periodic.schedules import Interval, Rule, clocked, latest, rule_of
from celery_delayq.periodic.wall_clock import datetime_of_ms, ms_of_datetime
from tests.support.periodic import BERLIN, DAY, NOON, NOON_MS, UTC, YEAR, counted, ticks_of

THREE_YEARS = 3 * YEAR


def ticks(rule: Rule, after: datetime, number: int) -> list[str]:
    """Return the next ticks, at most so many, in UTC."""
    found = islice(ticks_of(rule, ms_of_datetime(after)), number)
    return [f"{datetime_of_ms(tick):%Y-%m-%d %H:%M:%S}" for tick in found]


def all_ticks(rule: Rule, after: int, until: int) -> list[int]:
    return [*takewhile(lambda tick: tick <= until, ticks_of(rule, after))]


def seconds_of(work: Callable[[], Any]) -> float:
    """Return what it takes at best, as the machine may be busy."""
    took = []
    for _ in range(3):
        began = time.process_time()
        work()
        took.append(time.process_time() - began)
    return min(took)


# -- intervals


@given(every=st.integers(1, 10**12), anchor=st.integers(0, 10**13), at=st.integers(0, 10**13))
def test_an_interval_is_counted_exactly_from_its_anchor(every: int, anchor: int, at: int) -> None:
    tick = rule_of(schedule(timedelta(milliseconds=every)), UTC, anchor).after(at)

    assert tick is not None
    assert tick > max(at, anchor)
    assert (tick - anchor) % every == 0
    assert tick - every <= max(at, anchor)


@pytest.mark.parametrize("every", [0, -1, 0.0001, 1.0005, timedelta.max, "5"])
def test_an_interval_is_some_whole_milliseconds(every: Any) -> None:
    with pytest.raises(InvalidSchedule, match="every"):
        rule_of(schedule(every), UTC, 0)


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        (timedelta(days=1), ["2026-03-03 00:00:00", "2026-03-04 00:00:00"]),
        (timedelta(days=2), ["2026-03-04 00:00:00", "2026-03-06 00:00:00"]),
        (timedelta(hours=1), ["2026-03-02 13:00:00", "2026-03-02 14:00:00"]),
        (timedelta(hours=30), ["2026-03-03 00:00:00", "2026-03-04 00:00:00"]),
        (timedelta(minutes=5), ["2026-03-02 12:38:00", "2026-03-02 12:43:00"]),
        (timedelta(seconds=10), ["2026-03-02 12:33:54", "2026-03-02 12:34:04"]),
    ],
)
def test_what_is_relative_is_rounded_to_the_unit_of_the_interval(
    every: timedelta, expected: list[str]
) -> None:
    start = NOON.replace(minute=33, second=44, microsecond=500_000)

    assert (
        ticks(rule_of(schedule(every, relative=True), UTC, ms_of_datetime(start)), start, 2)
        == expected
    )


@given(every=st.integers(1, 3 * 86400), anchor=st.integers(0, 10**12), passed=st.integers(0, 10**9))
def test_what_is_relative_has_the_same_ticks_wherever_it_is_asked(
    every: int, anchor: int, passed: int
) -> None:
    rule = rule_of(schedule(every, relative=True), BERLIN, anchor)
    tick = rule.after(anchor + passed)

    assert tick is not None
    assert rule.after(tick - 1) == tick


# -- crontabs


def field(lowest: int, highest: int) -> st.SearchStrategy[str]:
    numbers = st.sets(st.integers(lowest, highest), min_size=1, max_size=4)
    listed = numbers.map(lambda some: ",".join(map(str, sorted(some))))
    return st.just("*") | st.integers(2, 5).map("*/{}".format) | listed


crontabs = st.builds(
    crontab,
    minute=field(0, 59),
    hour=field(0, 23),
    day_of_week=st.just("*") | field(0, 6),
    day_of_month=st.just("*") | field(1, 28),
    month_of_year=st.just("*") | field(1, 12),
)


@pytest.mark.conformance
@given(given_schedule=crontabs, at=st.datetimes(datetime(2019, 1, 1), datetime(2031, 1, 1)))
def test_crontabs_are_due_when_celery_says_so(given_schedule: crontab, at: datetime) -> None:
    at = at.replace(tzinfo=UTC, microsecond=0)
    given_schedule.nowfun = lambda: at
    given_schedule.app = Celery(set_as_current=False, timezone="UTC")
    tick = rule_of(given_schedule, UTC, 0).after(ms_of_datetime(at))

    assert tick is not None
    assert tick == ms_of_datetime(at + given_schedule.remaining_estimate(at))


@pytest.mark.parametrize(
    ("given_schedule", "expected"),
    [
        (crontab(0, 0, day_of_month=31), ["2026-03-31", "2026-05-31", "2026-07-31"]),
        (
            crontab(0, 0, day_of_month=29, month_of_year=2),
            ["2028-02-29", "2032-02-29", "2036-02-29"],
        ),
        (
            crontab(0, 0, day_of_month=29, month_of_year=2, day_of_week="mon"),
            ["2044-02-29", "2072-02-29", "2112-02-29"],
        ),
        (crontab(0, 0, day_of_month="13", day_of_week="fri"), ["2026-03-13", "2026-11-13"]),
        (crontab({0}, [0], {0}), ["2026-03-08", "2026-03-15"]),
    ],
)
def test_days_of_crontabs_are_those_of_the_calendar(
    given_schedule: crontab, expected: list[str]
) -> None:
    found = ticks(rule_of(given_schedule, UTC, 0), NOON, len(expected))

    assert [each[:10] for each in found] == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"day_of_month": 30, "month_of_year": 2},
        {"day_of_month": "31", "month_of_year": "4,6,9,11"},
        {"minute": []},
        {"hour": set()},
        {"month_of_year": ()},
        {"day_of_week": []},
        {"day_of_month": []},
    ],
)
def test_a_crontab_that_never_matches_is_refused(fields: dict[str, Any]) -> None:
    # By newer versions of Celery, where they see it, and by us.
    with pytest.raises(ValueError, match="never"):
        rule_of(crontab(**fields), UTC, 0)


# -- once


def test_what_is_clocked_is_due_once() -> None:
    rule = rule_of(clocked(NOON), ZoneInfo("Asia/Tokyo"), 0)

    assert ticks(rule, NOON - timedelta(days=1000), 3) == ["2026-03-02 12:00:00"]
    assert ticks(rule, NOON, 3) == []


@pytest.mark.parametrize("at", [datetime(2030, 1, 1), None, "2030-01-01T00:00Z", 5])
def test_what_is_clocked_has_a_time_zone(at: Any) -> None:
    with pytest.raises(InvalidSchedule, match="time zone"):
        clocked(at)


# -- classes of others


class weekdays(schedule):  # noqa: N801 - as Celery's
    """An interval, from Monday till Friday."""

    def is_due(self, last_run_at: datetime) -> Any:
        if self.now().isoweekday() > 5:
            return schedstate(False, 3600.0)
        return super().is_due(last_run_at)


class answers(BaseSchedule):  # noqa: N801
    """Always the same."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    def is_due(self, last_run_at: datetime) -> Any:  # noqa: ARG002 - as beat calls it
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class uncopied(schedule):  # noqa: N801
    """Is made of something else than its __reduce__ says."""

    def __init__(self, first: int, second: int, third: int, fourth: int) -> None:
        super().__init__(first + second + third + fourth)


class hourly(BaseSchedule):  # noqa: N801
    """At full hours, without is_due being told of any last time."""

    def is_due(self, last_run_at: datetime) -> Any:
        left = 3600 - self.now().timestamp() % 3600
        return schedstate(left == 3600 and self.now() > last_run_at, left)


def test_a_subclass_of_schedule_is_asked() -> None:
    rule = rule_of(weekdays(timedelta(hours=12)), UTC, 0)

    assert ticks(rule, NOON + timedelta(days=3), 4) == [
        "2026-03-06 00:00:00",
        "2026-03-06 12:00:00",
        "2026-03-09 00:00:00",
        "2026-03-09 12:00:00",
    ]


def test_a_subclass_of_crontab_is_due_as_the_crontab_is_by_the_clock_of_the_entry() -> None:
    zone = ZoneInfo("Asia/Tokyo")
    asked = rule_of(counted(minute="*/10", hour="9-10"), zone, 0)
    known = rule_of(crontab(minute="*/10", hour="9-10"), zone, 0)

    assert ticks(asked, NOON, 30) == ticks(known, NOON, 30)


def test_a_class_of_its_own_is_asked() -> None:
    assert ticks(rule_of(hourly(), UTC, 0), NOON, 2) == [
        "2026-03-02 13:00:00",
        "2026-03-02 14:00:00",
    ]


@pytest.mark.parametrize("answer", [(False, math.inf), (False, 1e300), (False, 10.0**9)])
def test_a_class_may_say_that_it_is_not_due_any_more(answer: Any) -> None:
    assert rule_of(answers(answer), UTC, 0).after(NOON_MS) is None


@pytest.mark.parametrize(
    "answer",
    [
        (False, 60),
        (False, 0),
        (False, -5),
        (False, -math.inf),
        (False, math.nan),
        (False, None),
        (False, "soon"),
        None,
        (True,),
        RuntimeError("the almanac is lost"),
        OverflowError(),
    ],
)
def test_a_class_that_cannot_say_when_it_is_due_is_invalid(answer: Any) -> None:
    with pytest.raises(InvalidSchedule, match="due"):
        rule_of(answers(answer), UTC, 0).after(NOON_MS)


@pytest.mark.parametrize(
    ("given_schedule", "text"),
    [
        (BaseSchedule(), "NotImplementedError"),
        (uncopied(1, 2, 3, 4), "copied"),
        *((each, "expected a schedule") for each in (None, 5, "0 0 * * *", crontab)),
    ],
)
def test_what_cannot_be_asked_is_invalid(given_schedule: Any, text: str) -> None:
    with pytest.raises(InvalidSchedule, match=text):
        rule_of(given_schedule, UTC, 0).after(NOON_MS)


def test_asking_a_schedule_leaves_it_alone() -> None:
    given_schedule = weekdays(60)
    rule_of(given_schedule, UTC, 0).after(NOON_MS)

    assert given_schedule.nowfun is None


def test_the_sun_rises_once_a_day() -> None:
    rule = rule_of(solar("sunrise", 52.5, 13.4), BERLIN, 0)

    found = ticks(rule, NOON, 3)

    assert [each[:13] for each in found] == ["2026-03-03 05", "2026-03-04 05", "2026-03-05 05"]


# -- the last ticks of many


rules = (
    st.builds(Interval, st.integers(1000, 10**8), st.integers(10**12, 10**12 + 10**9))
    | crontabs.map(lambda each: rule_of(each, BERLIN, 0))
    | st.sampled_from(
        [
            "FREQ=HOURLY;INTERVAL=5",
            "FREQ=DAILY;BYHOUR=2,9;BYMINUTE=30",
            "FREQ=WEEKLY;INTERVAL=2;BYDAY=MO,SA",
            "FREQ=DAILY;COUNT=20",
            "FREQ=DAILY;UNTIL=20020101T000000",
        ]
    ).map(lambda text: rule_of(rrule(text), BERLIN, 10**12))
    | st.integers(60, 10**6).map(lambda every: rule_of(schedule(every, relative=True), UTC, 10**12))
    | st.just(rule_of(clocked(datetime(2001, 9, 20, tzinfo=UTC)), UTC, 0))
    | st.just(rule_of(hourly(), UTC, 0))
)


@given(
    rule=rules,
    after=st.integers(10**12, 10**12 + 20 * DAY),
    length=st.integers(0, 2 * DAY),
    most=st.integers(1, 50),
)
def test_the_latest_ticks_are_those_that_going_through_all_would_find(
    rule: Rule, after: int, length: int, most: int
) -> None:
    until = after + length

    assert latest(rule, after, until, most) == all_ticks(rule, after, until)[-most:]


@pytest.mark.parametrize(
    "rule",
    [
        rule_of(crontab(), BERLIN, 0),
        rule_of(schedule(0.001), UTC, 0),
        rule_of(rrule("FREQ=SECONDLY"), UTC, 10**12),
    ],
)
def test_the_latest_ticks_of_years_are_found_at_once(rule: Rule) -> None:
    now = NOON_MS

    assert len(latest(rule, now - THREE_YEARS, now, 100)) == 100
    assert seconds_of(lambda: latest(rule, now - THREE_YEARS, now, 100)) < 1
