"""How entries of other schedulers are to stand here, and what is read of their pickles and JSON."""

from __future__ import annotations

import io
import json
import pickle
from dataclasses import replace
from datetime import datetime, timedelta, timezone, tzinfo
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import pytz  # type: ignore[import-untyped]
from celery import Celery
from celery.beat import ScheduleEntry
from celery.schedules import crontab, schedule, solar
from celery.utils.time import LocalTimezone
from dateutil import tz as dateutil_tz

from celery_delayq import DelayQ
from celery_delayq.errors import ConfigError, NotSupported
from celery_delayq.periodic import exported
from celery_delayq.periodic.definition import Definition
from celery_delayq.periodic.entries import Periodic
from celery_delayq.periodic.importers import (
    FoundEntry,
    beat,
    begin_from,
    found_by,
    in_utc,
    redbeat,
    take_over,
)
from celery_delayq.periodic.importers.django import _moment, _start_of_intervals
from celery_delayq.periodic.policy import begin, fire
from celery_delayq.periodic.schedules import clocked
from celery_delayq.periodic.wall_clock import ms_of_datetime
from tests.support.periodic import BERLIN, HOUR, MINUTE, NOON, NOON_MS, UTC


def entry_of(when: Any = 3600, **given: Any) -> Definition:
    return Definition.from_fields(when, name="a", task="t", **given)


def taken(definition: Definition, **given: Any) -> Periodic:
    """Return the entry at noon of what another scheduler has."""
    return begin_from(FoundEntry(name="a", **given), definition, NOON_MS, UTC)


def ticks_at(entry: Periodic) -> list[float]:
    """Return the ticks of the first look, in minutes from noon."""
    firing = fire(entry, NOON_MS, UTC)
    return [] if firing is None else [(tick - NOON_MS) / MINUTE for tick in firing.ticks]


# -- where it goes on


def test_an_interval_goes_on_in_its_phase() -> None:
    last = NOON - timedelta(minutes=45)
    entry = taken(entry_of(), last_run_at=last, total_run_count=9)

    assert (entry.state.next_tick, entry.state.last_tick) == (
        NOON_MS + 15 * MINUTE,
        ms_of_datetime(last),
    )
    assert entry.total_run_count == 9


def test_what_was_missed_since_is_caught_up_as_the_entry_says() -> None:
    definition = entry_of(catch_up="all", catch_up_max=2)

    assert ticks_at(taken(definition, last_run_at=NOON - timedelta(minutes=210))) == [-90, -30]


@pytest.mark.parametrize("when", [0.05, 3600, crontab(), schedule(60, relative=True)])
def test_a_run_of_ages_ago_is_caught_up_by_one(when: Any) -> None:
    ticks = ticks_at(taken(entry_of(when), last_run_at=datetime(1999, 1, 1, tzinfo=UTC)))

    missed = [tick for tick in ticks if tick < -1 / 60]
    assert len(missed) == 1
    assert missed[0] >= -60


@pytest.mark.parametrize(
    ("definition", "found", "status", "tick"),
    [
        pytest.param(
            entry_of(),
            {"since": NOON - timedelta(minutes=20)},
            "on",
            NOON_MS + 40 * MINUTE,
            id="one that has not run counts from when it was made",
        ),
        pytest.param(entry_of(), {}, "on", NOON_MS + HOUR, id="an unknown one begins now"),
        pytest.param(
            entry_of(),
            {"enabled": False, "last_run_at": NOON - timedelta(hours=5)},
            "paused",
            None,
            id="one that is not enabled is paused",
        ),
        *(
            pytest.param(
                entry_of(max_runs=1),
                {"enabled": enabled, "last_run_at": NOON, "total_run_count": 1},
                "ended",
                None,
                id="one that has run as often as it should is over",
            )
            for enabled in (True, False)
        ),
        pytest.param(
            entry_of(NOON - timedelta(days=1)),
            {"enabled": False},
            "ended",
            None,
            id="a moment that has passed while it was off is over",
        ),
    ],
)
def test_an_entry_begins_as_it_was_elsewhere(
    definition: Definition, found: dict[str, Any], status: str, tick: int | None
) -> None:
    entry = taken(definition, **found)

    assert (entry.status, entry.state.next_tick) == (status, tick)
    assert entry.last_run_at == found.get("last_run_at")


def test_a_broker_of_another_kind_is_refused() -> None:
    delayq = DelayQ(Celery("x", broker="memory://", set_as_current=False))

    with pytest.raises(NotSupported, match="the broker is memory://"):
        list(take_over(delayq.session, [FoundEntry(name="a", definition=entry_of())]))


# -- beat's pickles


def read(given: Any) -> Any:
    return beat._Reader(io.BytesIO(pickle.dumps(given))).load()


@pytest.mark.parametrize(
    "zone",
    [
        UTC,
        timezone(timedelta(hours=5)),
        BERLIN,
        pytz.utc,
        pytz.timezone("Europe/Berlin"),
        pytz.timezone("America/New_York"),
        LocalTimezone(),
        dateutil_tz.UTC,
        dateutil_tz.tzlocal(),
    ],
    ids=str,
)
@pytest.mark.parametrize("month", [1, 7])
def test_times_in_any_zone_are_read(zone: tzinfo, month: int) -> None:
    at = datetime(2026, month, 2, 9, 30, 1, 250_000, tzinfo=UTC).astimezone(zone)

    assert in_utc(read(at)) == at


def test_a_time_without_a_zone_is_one_of_utc() -> None:
    assert in_utc(read(datetime(2026, 1, 2))) == datetime(2026, 1, 2, tzinfo=UTC)


class Zone(tzinfo):
    """One of somebody's own."""

    def utcoffset(self, _: datetime | None) -> timedelta:
        return timedelta(hours=1)

    dst = utcoffset

    def tzname(self, _: datetime | None) -> str:
        return "own"


def test_what_is_strange_in_one_entry_is_no_harm_to_others() -> None:
    def entry(**given: Any) -> ScheduleEntry:
        return ScheduleEntry("a", "t", **{"schedule": crontab(), "last_run_at": NOON, **given})

    kept = read(
        {
            "zone": entry(last_run_at=datetime(2026, 1, 2, tzinfo=Zone())),
            "count": entry(total_run_count="many"),
            "good": entry(total_run_count=3, kwargs={"x": {1, 2}, "y": Zone(), "z": print}),
            "text": "a",
        }
    )

    code = dict.fromkeys(kept, entry_of())
    found = {name: found_by(partial(beat._read, each, code), name) for name, each in kept.items()}
    good = found.pop("good")
    assert (good.last_run_at, good.total_run_count, good.problem) == (NOON, 3, None)
    assert found.keys() == {"zone", "count", "text"}
    assert all(each.problem and each.last_run_at is None for each in found.values())


# -- RedBeat's JSON


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({}, datetime(2026, 7, 2, 3, tzinfo=UTC)),
        ({"timezone": "UTC"}, datetime(2026, 7, 2, 3, tzinfo=UTC)),
        ({"timezone": "Europe/Berlin"}, datetime(2026, 7, 2, 1, tzinfo=UTC)),
        ({"timezone": -3600.0}, datetime(2026, 7, 2, 4, tzinfo=UTC)),
    ],
)
def test_moments_of_redbeat(data: dict[str, Any], expected: datetime) -> None:
    given = {"__type__": "datetime", "year": 2026, "month": 7, "day": 2, "hour": 3, **data}

    assert redbeat._hook(given) == expected


@pytest.mark.parametrize(
    ("hours", "zone", "expected"),
    [
        (0, "Europe/Berlin", "UTC"),
        (1, "Europe/Berlin", "Etc/GMT-1"),
        (-5, "UTC", "Etc/GMT+5"),
        (5.5, "Asia/Kolkata", None),
        (9, "Asia/Tokyo", None),
    ],
)
def test_the_zone_of_an_offset(hours: float, zone: str, expected: str | None) -> None:
    offset, app_zone = timedelta(hours=hours), ZoneInfo(zone)

    assert redbeat._zone_name(offset, app_zone, NOON) == expected
    found = app_zone if expected is None else ZoneInfo(expected)
    assert NOON.astimezone(found).utcoffset() == offset


# -- rows of django-celery-beat


def test_a_row_says_moments_as_its_driver_does() -> None:
    assert _moment({"x": "2026-03-02 12:00:00"}, "x") == NOON
    assert _moment({"x": datetime(2026, 3, 2, 12)}, "x") == NOON
    assert _moment({"x": NOON.astimezone(ZoneInfo("Asia/Tokyo"))}, "x") == NOON
    assert _moment({"x": None}, "x") is None
    for wrong in ("soon", 5):
        with pytest.raises(ConfigError, match="expected a date and time"):
            _moment({"x": wrong}, "x")


def test_the_first_tick_is_at_the_start() -> None:
    start = NOON + timedelta(days=3)
    for when in (schedule(7200), crontab(minute=0, hour="*/2")):
        definition = entry_of(when, start=start)
        for last in (None, NOON - timedelta(minutes=5)):
            since = _start_of_intervals(FoundEntry(name="a", last_run_at=last), when, start)
            assert taken(
                definition, last_run_at=last, since=since
            ).state.next_tick == ms_of_datetime(start)


def test_a_moment_that_has_passed_unseen_is_caught_up() -> None:
    at = NOON - timedelta(minutes=5)
    found = FoundEntry(name="a", since=NOON - timedelta(minutes=1))
    since = _start_of_intervals(found, clocked(at), None)

    assert ticks_at(taken(entry_of(at, max_runs=1), since=since)) == [-5]


# -- a list


def read_lines(lines: list[str], own: str, code: dict[str, Any]) -> list[FoundEntry]:
    return [
        found_by(partial(exported._read, line, own, code), f"line {number}")
        for number, line in enumerate(lines, 1)
    ]


def listed_again(
    definition: Definition, made: datetime, code: Any = None, **told: Any
) -> tuple[FoundEntry, Definition]:
    """Return what a list says of an entry, and what counts then."""
    entry = begin(definition, ms_of_datetime(made), UTC)
    line = json.dumps({**entry.as_dict(), **told})
    own = "code shop"
    (found,) = read_lines([line], own, {} if code is None else {definition.name: code})
    assert found.problem is None, found.problem
    counts = code or found.definition
    assert counts is not None
    return found, counts


PAST = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "when", [crontab(minute=0, hour=0, day_of_month=15), 7 * 86400, solar("sunset", 52.5, 13.4)]
)
@pytest.mark.parametrize("source", ["api", "code shop"])
def test_of_a_list_no_tick_is_owed_before_the_next_one(when: Any, source: str) -> None:
    given = entry_of(when, start=PAST, source=source)
    made = NOON - timedelta(minutes=10)
    found, counts = listed_again(given, made, given if source != "api" else None)

    entry = begin_from(found, counts, NOON_MS, UTC)

    assert ticks_at(entry) == []
    assert entry == begin(given, ms_of_datetime(made), UTC)


def test_of_a_list_the_next_one_is_caught_up_when_it_is_missed() -> None:
    given = entry_of(crontab(minute=0), start=PAST, catch_up="all")
    found, counts = listed_again(given, NOON - timedelta(minutes=150))

    assert ticks_at(begin_from(found, counts, NOON_MS, UTC)) == [-120, -60, 0]


def test_what_is_due_otherwise_in_code_than_in_a_list_is_due_from_now_on() -> None:
    source = "code shop"
    monthly = entry_of(crontab(0, 0, day_of_month=15), start=PAST, source=source)
    hourly_now = entry_of(crontab(0), start=PAST, source=source)
    found, counts = listed_again(monthly, NOON - timedelta(minutes=10), hourly_now)

    assert begin_from(found, counts, NOON_MS, UTC).state.next_tick == NOON_MS + HOUR


def test_what_ran_since_a_list_does_not_run_again() -> None:
    given = entry_of(crontab(minute=0), start=PAST)
    found, counts = listed_again(given, NOON - timedelta(minutes=150))
    found = replace(found, last_run_at=NOON)

    assert begin_from(found, counts, NOON_MS, UTC).state.next_tick == NOON_MS + HOUR


@pytest.mark.parametrize(
    ("told", "name"),
    [
        *((f'"name": {name}', "line 1") for name in ("5", "null", '["a"]', '"\\ud800"')),
        *(
            (f'"name": "a", "{what}": "{when}"', "a")
            for what in ("since", "next", "last_run_at")
            for when in (
                *("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"),
                *("1969-12-31T00:00:00+00:00", "soon"),
            )
        ),
        *(
            (f'"name": "a", "{what}": {number}', "a")
            for what in ("total_run_count", "manual_runs")
            for number in ("1e400", "NaN", '"x"')
        ),
        ('"name": "a", "since": 5', "a"),
        ('"name": "a", "total_run_count": -1', "a"),
    ],
)
def test_what_is_wrong_in_a_line_of_a_list_is_a_problem_of_that_line(told: str, name: str) -> None:
    good = '{"task": "t", "schedule": {"every": 60}, "status": "on", "source": "SOURCE", %s}'

    for source in ("api", "code shop"):
        line = good.replace("SOURCE", source) % told
        code = {"a": entry_of(source="code shop")}
        other = good % '"name": "b"'
        wrong, right = read_lines([line, other], "code shop", code)
        assert wrong.name == name
        assert wrong.problem is not None
        assert wrong.problem.startswith("unreadable line of `periodic list --json`: ")
        assert (right.name, right.problem) == ("b", None)
