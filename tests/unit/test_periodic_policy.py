"""Which ticks of a periodic entry are scheduled, and how the entry stands then."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import BaseSchedule, crontab, schedule, solar
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_delayq.definitions import AHEAD, Definition, edition_of
from celery_delayq.periodic import (
    BURST,
    GRACE,
    Firing,
    Periodic,
    Standing,
    ahead_of,
    begin,
    change,
    fire,
    pause,
    resume,
    tick_id,
    upcoming,
)
from celery_delayq.schedules import rrule

UTC = timezone.utc
BERLIN = ZoneInfo("Europe/Berlin")
NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
NOON_MS = 1_772_452_800_000
SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000
YEAR = 365 * DAY

Ticks = tuple[int, ...]


class steps(schedule):  # noqa: N801 - as Celery's
    """An interval that is asked, as beat would: so long after the last time."""

    def __reduce__(self) -> Any:
        return type(self), (self.run_every.total_seconds(),)


class counted(crontab):  # noqa: N801 - as Celery's
    """One that is asked, and counts how often."""

    asked = 0

    def is_due(self, last_run_at: datetime) -> Any:
        counted.asked += 1
        return super().is_due(last_run_at)


def defined(every: Any = 10, **given: Any) -> Definition:
    return Definition.checked(every, **{"name": "bell", "task": "tower.ring", **given})


def begun(every: Any = 10, **given: Any) -> Periodic:
    """Return an entry that began at noon."""
    return begin(defined(every, **given), NOON_MS, UTC)


def standing(entry: Periodic, **changed: Any) -> Periodic:
    return replace(entry, standing=replace(entry.standing, **changed))


def fired(entry: Periodic, now: int) -> Periodic:
    """Return how an entry stands after a look at it."""
    firing = fire(entry, now, UTC)
    assert firing is not None
    return replace(entry, standing=firing.then)


def seconds(*some: float) -> Ticks:
    """Return ticks so many seconds after noon."""
    return tuple(NOON_MS + round(each * SECOND) for each in some)


def every(step: float, first: float, last: float) -> Ticks:
    """Return ticks in steps of so many seconds, from and until so many after noon."""
    start, end = seconds(first, last)
    return tuple(range(start, end + 1, round(step * SECOND)))


# -- how an entry begins


@pytest.mark.parametrize(
    ("definition", "anchor", "tick"),
    [
        (defined(10), NOON_MS, NOON_MS + 10 * SECOND),
        (defined(timedelta(days=1)), NOON_MS, NOON_MS + DAY),
        (defined(10, start=NOON + timedelta(hours=1)), NOON_MS + HOUR, NOON_MS + HOUR + 10_000),
        (defined(10, start=NOON - timedelta(seconds=7)), NOON_MS - 7_000, NOON_MS + 3_000),
        (defined(10, start=NOON - timedelta(seconds=10)), NOON_MS - 10_000, NOON_MS + 10_000),
        (defined(crontab(0)), NOON_MS, NOON_MS + HOUR),
        (
            defined(crontab(0), start=NOON + timedelta(hours=5)),
            NOON_MS + 5 * HOUR,
            NOON_MS + 5 * HOUR,
        ),
        (
            defined(crontab(0), start=NOON + timedelta(hours=5, microseconds=1)),
            NOON_MS + 5 * HOUR + 1,
            NOON_MS + 6 * HOUR,
        ),
        (defined(rrule("FREQ=HOURLY;INTERVAL=2")), NOON_MS, NOON_MS + 2 * HOUR),
        (defined(NOON + timedelta(milliseconds=1)), NOON_MS, NOON_MS + 1),
        (defined(10, end=NOON + timedelta(seconds=10)), NOON_MS, NOON_MS + 10 * SECOND),
    ],
)
def test_a_new_entry_waits_for_its_first_tick(
    definition: Definition, anchor: int, tick: int
) -> None:
    assert begin(definition, NOON_MS, UTC) == Periodic(
        definition,
        Standing(
            edition=edition_of(definition),
            anchor=anchor,
            tick=tick,
            last=None,
            count=0,
            status="on",
        ),
    )


@pytest.mark.parametrize(
    "definition",
    [
        defined(NOON),
        defined(NOON - timedelta(days=1)),
        defined(10, end=NOON + timedelta(seconds=10) - timedelta(milliseconds=1)),
        defined(10, end=NOON - timedelta(days=1)),
        defined(NOON + timedelta(hours=2), start=NOON + timedelta(hours=3)),
        defined(rrule("FREQ=DAILY;UNTIL=20260302T115959")),
    ],
)
def test_what_is_never_due_from_now_on_has_ended_before_it_begins(definition: Definition) -> None:
    assert begin(definition, NOON_MS, UTC).standing == Standing(
        edition=edition_of(definition),
        anchor=NOON_MS if definition.start is None else NOON_MS + 3 * HOUR,
        status="ended",
    )


def test_times_of_day_are_those_of_the_entry_or_else_of_the_app() -> None:
    at_three = crontab(0, 15)

    assert begin(defined(at_three), NOON_MS, UTC).standing.tick == NOON_MS + 3 * HOUR
    assert begin(defined(at_three), NOON_MS, BERLIN).standing.tick == NOON_MS + 2 * HOUR
    tokyo = defined(at_three, timezone="Asia/Tokyo")
    assert begin(tokyo, NOON_MS, BERLIN).standing.tick == NOON_MS + 18 * HOUR


def test_an_entry_tells_what_its_record_says() -> None:
    entry = standing(begun(10), last=NOON_MS - 500, count=7)

    assert (entry.name, entry.next, entry.last_run_at, entry.total_run_count, entry.status) == (
        "bell",
        NOON + timedelta(seconds=10),
        NOON - timedelta(milliseconds=500),
        7,
        "on",
    )


def test_an_entry_that_waits_for_nothing_has_no_next_tick() -> None:
    entry = pause(begun(10))

    assert (entry.next, entry.last_run_at, entry.look, entry.status) == (None, None, None, "paused")


@pytest.mark.parametrize(("overlap", "ahead"), [("allow", AHEAD), ("skip", 0), ("queue_one", 0)])
def test_an_entry_is_looked_at_ahead_unless_it_depends_on_what_runs_then(
    overlap: str, ahead: int
) -> None:
    assert begun(10, overlap=overlap).look == NOON_MS + 10 * SECOND - ahead


def test_an_entry_as_json_says_what_it_is_and_how_it_stands() -> None:
    entry = standing(
        begun(10, args=[1], kwargs={"loud": True}, options={"queue": "tower"}, max_runs=5),
        last=NOON_MS - 500,
        count=2,
    )

    assert json.loads(json.dumps(entry.as_dict())) == {
        "name": "bell",
        "source": "api",
        "when": "every 10 s",
        "task": "tower.ring",
        "schedule": {"every": 10},
        "args": [1],
        "kwargs": {"loud": True},
        "options": {"queue": "tower"},
        "max_runs": 5,
        "status": "on",
        "next": "2026-03-02T12:00:10+00:00",
        "last_run_at": "2026-03-02T11:59:59.500000+00:00",
        "total_run_count": 2,
        "since": "2026-03-02T12:00:00+00:00",
    }


def test_an_entry_with_times_among_its_arguments_can_be_told_as_json() -> None:
    told = json.dumps(begun(10, args=[NOON]).as_dict())

    assert "2026-03-02T12:00:00" in told


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York"])
@pytest.mark.parametrize(
    "every",
    [10, crontab(), schedule(10, relative=True), rrule("FREQ=DAILY"), steps(10)],
    ids=["interval", "crontab", "relative", "rrule", "asked"],
)
def test_an_entry_until_the_end_of_times_can_be_told(every: Any, zone: str) -> None:
    last = datetime(9998, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    ages = begun(every, timezone=zone, start=last, end=datetime.max.replace(tzinfo=UTC))

    assert ages.as_dict()["name"] == "bell"
    assert all(tick > NOON_MS + 7900 * YEAR for tick in upcoming(ages, 3, UTC))


def test_the_last_moment_of_all_is_no_tick() -> None:
    assert begun(datetime.max.replace(tzinfo=UTC)).as_dict()["status"] == "ended"


def test_the_task_of_a_tick_is_named_after_it() -> None:
    assert tick_id("a:b", NOON_MS) == f"a:b:{NOON_MS}"


# -- when it is time


@pytest.mark.parametrize(("overlap", "ahead"), [("allow", AHEAD), ("skip", 0), ("queue_one", 0)])
def test_a_tick_is_scheduled_from_its_look_on_to_the_ms(overlap: str, ahead: int) -> None:
    entry = begun(10, overlap=overlap)
    (tick,) = seconds(10)
    look = tick - ahead

    assert fire(entry, look - 1, UTC) is None
    firing = fire(entry, look, UTC)
    assert firing is not None
    assert firing.ticks == (tick,)


def test_all_ticks_until_two_seconds_ahead_are_scheduled_together() -> None:
    entry = begun(0.5)

    assert fire(entry, NOON_MS, UTC) == Firing(
        ticks=seconds(0.5, 1, 1.5, 2),
        then=replace(entry.standing, tick=NOON_MS + 2500, last=NOON_MS + 2000, count=4),
        refused=replace(entry.standing, tick=NOON_MS + 2500),
        now=NOON_MS,
    )


@pytest.mark.parametrize("overlap", ["allow", "skip", "queue_one"])
@pytest.mark.parametrize(
    "entry", [pause(begun(10)), standing(begun(10), tick=None, status="ended")]
)
def test_nothing_is_fired_of_an_entry_that_does_not_go_on(entry: Periodic, overlap: Any) -> None:
    entry = replace(entry, definition=replace(entry.definition, overlap=overlap))

    assert fire(entry, NOON_MS + 10 * YEAR, UTC) is None


def test_what_is_due_once_is_fired_once() -> None:
    entry = begun(NOON + timedelta(hours=1))
    tick = NOON_MS + HOUR
    firing = fire(entry, tick - AHEAD, UTC)

    assert firing == Firing(
        ticks=(tick,),
        then=replace(entry.standing, tick=None, last=tick, count=1, status="ended"),
        refused=replace(entry.standing, tick=None, status="ended"),
        now=tick - AHEAD,
    )


def test_ticks_follow_the_wall_clock_of_the_app() -> None:
    entry = begin(defined(crontab(0, 15)), NOON_MS, BERLIN)
    tick = NOON_MS + 2 * HOUR
    firing = fire(entry, tick, BERLIN)

    assert firing is not None
    assert (firing.ticks, firing.then.tick) == ((tick,), tick + DAY)


# -- ticks that were missed


@pytest.mark.parametrize(("catch_up", "caught_up"), [("skip", False), ("one", True), ("all", True)])
def test_a_tick_is_missed_more_than_a_second_after_its_time_to_the_ms(
    catch_up: str, caught_up: bool
) -> None:
    entry = begun(3600, catch_up=catch_up)
    tick = NOON_MS + HOUR
    in_time, late = tick + GRACE, tick + GRACE + 1
    with_it = replace(entry.standing, tick=tick + HOUR, last=tick, count=1)
    without = replace(entry.standing, tick=tick + HOUR)

    assert fire(entry, in_time, UTC) == Firing((tick,), with_it, without, in_time)
    assert fire(entry, late, UTC) == (
        Firing((tick,), with_it, without, late) if caught_up else Firing((), without, without, late)
    )


@pytest.mark.parametrize(
    ("options", "caught_up"),
    [
        ({"catch_up": "skip"}, ()),
        ({"catch_up": "skip", "catch_up_max": 5}, ()),
        ({"catch_up": "one"}, seconds(8.5)),
        ({"catch_up": "one", "catch_up_max": 5}, seconds(8.5)),
        ({"catch_up": "all"}, every(0.5, 0.5, 8.5)),
        ({"catch_up": "all", "catch_up_max": 17}, every(0.5, 0.5, 8.5)),
        ({"catch_up": "all", "catch_up_max": 16}, every(0.5, 1, 8.5)),
        ({"catch_up": "all", "catch_up_max": 3}, seconds(7.5, 8, 8.5)),
        ({"catch_up": "all", "catch_up_max": 1}, seconds(8.5)),
    ],
)
def test_what_runs_of_the_ticks_that_were_missed_is_as_catch_up_says(
    options: dict[str, Any], caught_up: Ticks
) -> None:
    entry = begun(0.5, **options)
    (now,) = seconds(10)
    ticks = caught_up + every(0.5, 9, 12)

    assert fire(entry, now, UTC) == Firing(
        ticks=ticks,
        then=replace(
            entry.standing, tick=NOON_MS + 12_500, last=NOON_MS + 12_000, count=len(ticks)
        ),
        refused=replace(entry.standing, tick=NOON_MS + 12_500),
        now=now,
    )


@pytest.mark.parametrize("gap", [3 * MINUTE, HOUR, DAY, 3 * YEAR])
@pytest.mark.parametrize(
    ("options", "caught_up"),
    [
        ({"catch_up": "skip"}, 0),
        ({}, 1),
        ({"catch_up": "all"}, 100),
        ({"catch_up": "all", "catch_up_max": 1000}, 1000),
    ],
)
def test_of_a_long_gap_the_last_ticks_run(
    options: dict[str, Any], caught_up: int, gap: int
) -> None:
    entry = begun(1, **options)
    now = NOON_MS + gap
    first = max(NOON_MS + SECOND, now - GRACE - caught_up * SECOND)
    ticks = tuple(range(first, now + AHEAD + 1, SECOND))

    assert scheduled(entry, now) == (
        ticks,
        replace(entry.standing, tick=now + AHEAD + SECOND, last=now + AHEAD, count=len(ticks)),
    )


def test_ticks_that_are_skipped_do_not_count() -> None:
    entry = standing(begun(3600, catch_up="skip", max_runs=3), last=NOON_MS - DAY, count=2)
    now = NOON_MS + 5 * HOUR + 30 * MINUTE
    passed = replace(entry.standing, tick=NOON_MS + 6 * HOUR)

    assert fire(entry, now, UTC) == Firing((), passed, passed, now)


def test_a_day_that_was_missed_is_caught_up_by_the_calendar() -> None:
    entry = begun(crontab(0, 9, day_of_week="mon-fri"), catch_up="all")
    (friday, monday, tuesday) = (NOON_MS + days * DAY - 3 * HOUR for days in (4, 7, 8))
    entry = standing(entry, tick=friday)
    firing = fire(entry, monday + HOUR, UTC)

    assert firing is not None
    assert (firing.ticks, firing.then.tick) == ((friday, monday), tuesday)


def test_at_most_so_many_ticks_are_scheduled_at_once_and_others_at_the_next_look() -> None:
    entry = begun(0.001)
    end = NOON_MS + AHEAD

    looks = walk(entry, [0] * (AHEAD // BURST + 1))

    assert looks[:-1] == [
        (NOON_MS, tuple(range(first, first + BURST)))
        for first in range(NOON_MS + 1, end + 1, BURST)
    ]
    assert looks[-1] == (NOON_MS, ())


def test_what_was_missed_is_caught_up_beside_many_that_are_in_time() -> None:
    entry = begun(0.002, catch_up="all")
    now = NOON_MS + GRACE + 100

    assert scheduled(entry, now)[0] == tuple(range(NOON_MS + 2, now + AHEAD + 1, 2))


# -- looks at any times

INTERVALS = st.integers(50, 20_000)
GAPS = st.lists(st.integers(0, 5000) | st.integers(0, 60_000), min_size=1, max_size=15)


def scheduled(entry: Periodic, now: int) -> tuple[Ticks, Standing]:
    """Look at an entry until there is no more to schedule; return that, and how it stands then."""
    ticks: Ticks = ()
    while (firing := fire(entry, now, UTC)) is not None:
        ticks += firing.ticks
        entry = replace(entry, standing=firing.then)
    return ticks, entry.standing


def walk(entry: Periodic, gaps: list[int], zone: Any = UTC) -> list[tuple[int, Ticks]]:
    """Look at an entry again and again; return when that was, and what was scheduled then."""
    now, found = NOON_MS, []
    for gap in gaps:
        now += gap
        firing = fire(entry, now, zone)
        if firing is not None:
            assert firing.now == now
            entry = replace(entry, standing=firing.then)
        found.append((now, () if firing is None else firing.ticks))
    ticks = [tick for _, some in found for tick in some]
    assert (entry.standing.count, entry.standing.last) == (
        len(ticks),
        max(ticks, default=None),
    )
    return found


@settings(deadline=None)
@given(step=INTERVALS, gaps=GAPS)
def test_with_all_caught_up_each_tick_is_scheduled_once_and_in_order(
    step: int, gaps: list[int]
) -> None:
    entry = begun(step / 1000, catch_up="all", catch_up_max=1000)
    # As long as there are fewer than that.
    gaps = [min(gap, 1000 * step) for gap in gaps]
    at_once = 1000 // BURST + 2
    looks = walk(entry, [each for gap in gaps for each in (gap, *[0] * at_once)])

    end = looks[-1][0] + AHEAD
    assert [tick for _, some in looks for tick in some] == list(
        range(NOON_MS + step, end + 1, step)
    )


@settings(deadline=None)
@given(
    step=INTERVALS,
    gaps=GAPS,
    catch_up=st.sampled_from(["skip", "one", "all"]),
    most=st.integers(1, 20),
)
def test_each_look_schedules_what_was_not_missed_and_of_the_rest_what_catch_up_says(
    step: int, gaps: list[int], catch_up: str, most: int
) -> None:
    entry = begun(step / 1000, catch_up=catch_up, catch_up_max=most)
    kept = {"skip": 0, "one": 1, "all": most}[catch_up]

    reached = NOON_MS
    for now, ticks in walk(entry, gaps):
        steps = range(NOON_MS, now + AHEAD + 1, step)
        new = [tick for tick in steps if tick > reached]
        missed = [tick for tick in new if now - tick > GRACE]
        assert list(ticks) == missed[max(0, len(missed) - kept) :] + new[len(missed) :]
        reached = now + AHEAD


@settings(deadline=None)
@given(step=INTERVALS, gaps=GAPS, catch_up=st.sampled_from(["skip", "one", "all"]))
def test_what_looks_at_what_runs_schedules_the_last_tick_of_each_look(
    step: int, gaps: list[int], catch_up: str
) -> None:
    entry = begun(step / 1000, catch_up=catch_up, overlap="skip")

    reached = NOON_MS
    for now, ticks in walk(entry, gaps):
        last = now - (now - NOON_MS) % step
        missed = catch_up == "skip" and now - last > GRACE
        assert ticks == ((last,) if last > reached and not missed else ())
        reached = now


@settings(deadline=None)
@given(
    step=INTERVALS,
    gaps=GAPS,
    catch_up=st.sampled_from(["skip", "one", "all"]),
    overlap=st.sampled_from(["allow", "skip", "queue_one"]),
    most=st.integers(1, 10),
    length=st.integers(20_000, 100_000),
)
def test_no_walk_goes_past_the_end_or_the_number_of_runs(
    step: int, gaps: list[int], catch_up: str, overlap: str, most: int, length: int
) -> None:
    end = NOON + timedelta(milliseconds=length)
    entry = begun(step / 1000, catch_up=catch_up, overlap=overlap, max_runs=most, end=end)

    ticks = [tick for _, some in walk(entry, gaps) for tick in some]

    assert ticks == sorted(set(ticks))
    assert len(ticks) <= most
    assert all(tick <= NOON_MS + length and (tick - NOON_MS) % step == 0 for tick in ticks)


@settings(deadline=None, max_examples=40)
@given(gaps=st.lists(st.integers(0, 3 * DAY), min_size=1, max_size=10))
def test_a_crontab_is_caught_up_as_upcoming_foretold(gaps: list[int]) -> None:
    # Through the night in which clocks are set forward.
    entry = begun(crontab(30, "2,14"), catch_up="all", timezone="Europe/Berlin")
    entry = standing(entry, tick=NOON_MS + 26 * DAY + 90 * MINUTE)
    foretold = upcoming(entry, 100, UTC)

    looks = walk(entry, [26 * DAY, *gaps])
    ticks = [tick for _, some in looks for tick in some]

    assert ticks == [tick for tick in foretold if tick <= looks[-1][0] + AHEAD]


@settings(deadline=None, max_examples=30)
@given(
    every=st.sampled_from([steps(30), counted("*/7")]),
    catch_up=st.sampled_from(["skip", "one", "all"]),
    gaps=st.lists(st.integers(0, HOUR) | st.integers(0, 3 * DAY), min_size=1, max_size=5),
)
def test_what_is_asked_for_its_ticks_has_each_of_them_once_and_in_order(
    every: BaseSchedule, catch_up: str, gaps: list[int]
) -> None:
    entry = begun(every, catch_up=catch_up, catch_up_max=5)
    found: list[int] = []

    for now, ticks in walk(entry, gaps):
        assert all(tick <= now + AHEAD for tick in ticks)
        assert (
            sum(tick < now - GRACE for tick in ticks) <= {"skip": 0, "one": 1, "all": 5}[catch_up]
        )
        found += ticks

    assert found == sorted(set(found))
    assert all(tick % MINUTE == 0 for tick in found if isinstance(every, counted))


# -- while another one runs


def test_where_others_may_run_beside_it_every_tick_is_scheduled() -> None:
    entry = begun(0.5, overlap="allow")
    firing = fire(entry, NOON_MS + 1000, UTC)

    assert firing is not None
    assert firing.ticks == every(0.5, 0.5, 3)


@pytest.mark.parametrize("catch_up", ["skip", "one", "all"])
def test_what_does_not_run_beside_another_goes_on_with_the_next_tick_when_refused(
    catch_up: str,
) -> None:
    entry = standing(begun(0.5, overlap="skip", catch_up=catch_up), count=3, last=NOON_MS)
    (now,) = seconds(1.7)

    assert fire(entry, now, UTC) == Firing(
        ticks=seconds(1.5),
        then=replace(entry.standing, tick=NOON_MS + 2000, last=NOON_MS + 1500, count=4),
        refused=replace(entry.standing, tick=NOON_MS + 2000),
        now=now,
    )


def test_what_does_not_run_beside_another_skips_what_was_missed() -> None:
    entry = begun(3600, overlap="skip", catch_up="skip")
    now = NOON_MS + HOUR + GRACE + 1
    passed = replace(entry.standing, tick=NOON_MS + 2 * HOUR)

    assert fire(entry, now, UTC) == Firing((), passed, passed, now)


@pytest.mark.parametrize("catch_up", ["skip", "one", "all"])
@pytest.mark.parametrize(("since", "tick"), [(0.5, 0.5), (1.7, 1.5), (3600.2, 3600)])
def test_what_runs_after_another_stays_where_it_is_when_refused_and_means_the_last_tick(
    catch_up: str, since: float, tick: float
) -> None:
    entry = begun(0.5, overlap="queue_one", catch_up=catch_up)
    (now,), (due,) = seconds(since), seconds(tick)

    assert fire(entry, now, UTC) == Firing(
        ticks=(due,),
        then=replace(entry.standing, tick=due + 500, last=due, count=1),
        refused=entry.standing,
        now=now,
    )


def test_what_runs_after_another_still_does_so_when_its_end_has_passed() -> None:
    entry = begun(10, overlap="queue_one", end=NOON + timedelta(seconds=25))
    now = NOON_MS + HOUR

    assert fire(entry, now, UTC) == Firing(
        ticks=seconds(20),
        then=replace(entry.standing, tick=None, last=NOON_MS + 20_000, count=1, status="ended"),
        refused=entry.standing,
        now=now,
    )


def test_a_tick_that_is_refused_is_no_run() -> None:
    entry = standing(begun(10, overlap="skip", max_runs=3), count=2)
    firing = fire(entry, NOON_MS + 10 * SECOND, UTC)

    assert firing is not None
    assert (firing.then.count, firing.then.status) == (3, "ended")
    assert (firing.refused.count, firing.refused.status) == (2, "on")


def test_the_last_tick_of_all_ends_an_entry_even_when_refused() -> None:
    entry = begun(10, overlap="skip", end=NOON + timedelta(seconds=19))
    firing = fire(entry, NOON_MS + 10 * SECOND, UTC)

    assert firing is not None
    assert firing.refused == replace(entry.standing, tick=None, status="ended")


# -- start, end and number of runs


def test_an_entry_ends_with_the_last_tick_before_its_end() -> None:
    entry = begun(1, end=NOON + timedelta(seconds=3))

    assert fire(entry, NOON_MS + 1500, UTC) == Firing(
        ticks=seconds(1, 2, 3),
        then=replace(entry.standing, tick=None, last=NOON_MS + 3000, count=3, status="ended"),
        refused=replace(entry.standing, tick=None, status="ended"),
        now=NOON_MS + 1500,
    )


@pytest.mark.parametrize(
    ("catch_up", "ticks"),
    [("skip", ()), ("one", seconds(30)), ("all", seconds(10, 20, 30))],
)
def test_what_was_missed_before_the_end_is_caught_up_after_it(catch_up: str, ticks: Ticks) -> None:
    entry = begun(10, catch_up=catch_up, end=NOON + timedelta(seconds=39))
    firing = fire(entry, NOON_MS + DAY, UTC)

    assert firing is not None
    assert (firing.ticks, firing.then.tick, firing.then.status) == (ticks, None, "ended")
    assert firing.then.count == len(ticks)


def test_no_tick_is_after_the_end_of_a_day() -> None:
    last_moment = datetime(2026, 3, 3, 23, 59, 59, 999_999, tzinfo=UTC)
    entry = begun(crontab(0, 0), end=last_moment)

    assert upcoming(entry, 5, UTC) == [NOON_MS + 12 * HOUR]


def test_an_end_between_two_ms_is_that_of_the_tick_before_it() -> None:
    entry = begun(0.001, end=NOON + timedelta(microseconds=5500))

    assert fire(entry, NOON_MS, UTC) == Firing(
        ticks=seconds(0.001, 0.002, 0.003, 0.004, 0.005),
        then=replace(entry.standing, tick=None, last=NOON_MS + 5, count=5, status="ended"),
        refused=replace(entry.standing, tick=None, status="ended"),
        now=NOON_MS,
    )


@pytest.mark.parametrize("overlap", ["allow", "skip", "queue_one"])
def test_a_tick_after_the_end_is_not_fired_whoever_has_written_it(overlap: str) -> None:
    entry = begun(10, end=NOON + timedelta(seconds=15), overlap=overlap)
    entry = standing(entry, tick=NOON_MS + 20_000)
    ended = replace(entry.standing, tick=None, status="ended")

    assert fire(entry, NOON_MS + HOUR, UTC) == Firing((), ended, ended, NOON_MS + HOUR)


@pytest.mark.parametrize(
    ("options", "ticks"),
    [
        ({"catch_up": "all"}, seconds(1, 2, 3)),
        ({"catch_up": "all", "catch_up_max": 2}, seconds(7, 8, 9)),
        ({"catch_up": "one"}, seconds(8, 9, 10)),
        ({"catch_up": "skip"}, seconds(9, 10, 11)),
        ({"overlap": "skip"}, seconds(10)),
        ({"overlap": "queue_one"}, seconds(10)),
    ],
)
def test_the_number_of_runs_counts_what_is_caught_up_first(
    options: dict[str, Any], ticks: Ticks
) -> None:
    entry = standing(begun(1, max_runs=5, **options), count=2)
    firing = fire(entry, NOON_MS + 10 * SECOND, UTC)

    assert firing is not None
    assert (firing.ticks, firing.then.count) == (ticks, 2 + len(ticks))
    assert firing.then.last == ticks[-1]
    ended = len(ticks) == 3
    assert (firing.then.status, firing.then.tick is None) == ("ended" if ended else "on", ended)


@pytest.mark.parametrize(("runs", "then"), [(1, "ended"), (2, "on")])
def test_an_entry_ends_with_its_last_run(runs: int, then: str) -> None:
    entry = begun(10, max_runs=runs)

    assert fire(entry, NOON_MS + 8000, UTC) == Firing(
        ticks=seconds(10),
        then=replace(
            entry.standing,
            tick=NOON_MS + 20_000 if then == "on" else None,
            last=NOON_MS + 10_000,
            count=1,
            status=then,  # type: ignore[arg-type]
        ),
        refused=replace(entry.standing, tick=NOON_MS + 20_000),
        now=NOON_MS + 8000,
    )


@pytest.mark.parametrize("overlap", ["allow", "skip", "queue_one"])
@pytest.mark.parametrize("count", [3, 4, 5])
def test_runs_by_hand_may_use_up_the_number_of_runs(overlap: str, count: int) -> None:
    entry = standing(begun(10, max_runs=3, catch_up="all", overlap=overlap), count=count)
    ended = replace(entry.standing, tick=None, status="ended")
    now = NOON_MS + 45_000

    assert fire(entry, now, UTC) == Firing((), ended, ended, now)


# -- another definition


def test_other_options_leave_the_ticks_of_an_entry_alone() -> None:
    entry = fired(begun(10), NOON_MS + 9 * SECOND)
    now = NOON_MS + 13 * SECOND

    for options in (
        {"task": "tower.chime"},
        {"args": [1], "kwargs": {"a": 1}, "options": {"queue": "q"}},
        {"catch_up": "all", "catch_up_max": 7},
        {"overlap": "skip"},
        {"timezone": "Europe/Berlin"},
        {"max_runs": 2},
        {"end": NOON + timedelta(seconds=20)},
    ):
        definition = defined(10, **options)
        assert change(entry, definition, now, UTC) == Periodic(
            definition, replace(entry.standing, edition=edition_of(definition))
        )


def test_another_definition_has_another_edition() -> None:
    entry = begun(10)

    assert change(entry, defined(10), NOON_MS, UTC) == entry
    changed = change(entry, defined(10, args=[1]), NOON_MS, UTC)
    assert changed.standing.edition != entry.standing.edition


@pytest.mark.parametrize(
    ("old", "looks", "now", "new", "anchor", "tick"),
    [
        # Nothing was scheduled yet: from when it was made.
        (10, (), 3, 7, 0, 7),
        (10, (), 3, 2, 0, 4),
        (10, (), 8, 7, 0, 14),
        # From the last tick on.
        (10, (10,), 13, 7, 10, 17),
        (10, (10,), 16, 7, 10, 17),
        (10, (10,), 17, 7, 10, 24),
        (10, (10,), 100, 7, 10, 101),
        (10, (10, 18), 22, 7, 20, 27),
        # Which may be ahead, and is not scheduled twice.
        (10, (8,), 8, 1, 10, 11),
        (10, (8,), 9, 20, 10, 30),
        (10, (8,), 8, timedelta(seconds=20), 10, 30),
        # From a kind to another and back.
        (crontab(), (60,), 61, 90, 60, 150),
        (90, (90,), 91, crontab(), 90, 120),
        (60, (58,), 58, crontab(), 60, 120),
    ],
)
def test_another_interval_goes_on_from_the_last_tick(
    old: Any, looks: tuple[float, ...], now: float, new: Any, anchor: float, tick: float
) -> None:
    entry, definition = begun(old), defined(new)
    for look in seconds(*looks):
        entry = fired(entry, look)
    (now_ms, anchor_ms, tick_ms) = seconds(now, anchor, tick)

    assert change(entry, definition, now_ms, UTC) == Periodic(
        definition,
        replace(entry.standing, edition=edition_of(definition), anchor=anchor_ms, tick=tick_ms),
    )


@pytest.mark.parametrize("every", [10, crontab()])
@pytest.mark.parametrize("ahead", [0, 1, 1999, 2000])
def test_what_is_scheduled_ahead_is_not_scheduled_again_after_a_change(
    every: Any, ahead: int
) -> None:
    first, second = upcoming(begun(every), 2, UTC)
    entry = fired(begun(every), first - ahead)
    changed = change(entry, defined(every, args=[1]), first - ahead, UTC)

    assert (changed.standing.last, changed.standing.tick) == (first, second)


def test_a_schedule_spelled_in_another_way_is_the_same() -> None:
    entry = fired(begun(60), NOON_MS + 60_000)
    changed = change(entry, defined(schedule(timedelta(minutes=1))), NOON_MS + 61_000, UTC)

    assert changed.standing == entry.standing


def test_a_rounded_interval_is_another_than_one_that_is_not() -> None:
    entry = fired(begun(3600, max_runs=9), NOON_MS + HOUR)
    definition = defined(schedule(3600, relative=True), max_runs=9)

    assert change(entry, definition, NOON_MS + HOUR, UTC).standing == replace(
        entry.standing, edition=edition_of(definition), anchor=NOON_MS + HOUR
    )


@pytest.mark.parametrize(
    ("old", "new", "anchor", "tick"),
    [
        (None, 3, 3, 23),  # a new start is where an interval counts from
        (0, 3, 3, 23),
        (0, None, 0, 20),  # without one it keeps its phase
        (0, 0, 0, 20),
        (3, 3, 3, 23),
        (None, 60, 60, 70),  # no tick is before it
    ],
)
def test_a_new_start_is_a_new_phase(
    old: float | None, new: float | None, anchor: float, tick: float
) -> None:
    def start(after: float | None) -> datetime | None:
        return None if after is None else NOON + timedelta(seconds=after)

    entry = fired(begun(10, start=start(old)), NOON_MS + 12_000)
    definition = defined(10, start=start(new))
    (anchor_ms, tick_ms) = seconds(anchor, tick)

    assert change(entry, definition, NOON_MS + 14_000, UTC) == Periodic(
        definition,
        replace(entry.standing, edition=edition_of(definition), anchor=anchor_ms, tick=tick_ms),
    )


def test_another_interval_goes_on_from_the_last_tick_where_its_start_stays() -> None:
    entry = fired(begun(10, start=NOON), NOON_MS + 10_000)
    changed = change(entry, defined(7, start=NOON), NOON_MS + 11_000, UTC)

    assert (changed.standing.anchor, changed.standing.tick) == seconds(10, 17)


@pytest.mark.parametrize(
    "options", [{"max_runs": 1}, {"end": NOON + timedelta(seconds=19)}, {"end": NOON}]
)
def test_a_change_may_end_an_entry_and_another_one_revive_it(options: dict[str, Any]) -> None:
    entry = fired(begun(10), NOON_MS + 10_000)
    definition = defined(10, **options)
    ended = change(entry, definition, NOON_MS + 11_000, UTC)

    assert ended.standing == replace(
        entry.standing, edition=edition_of(definition), tick=None, status="ended"
    )
    assert change(ended, defined(10), NOON_MS + 15_000, UTC) == entry
    late = change(ended, defined(10), NOON_MS + 45_000, UTC)
    assert late.standing == replace(entry.standing, tick=NOON_MS + 50_000)


@pytest.mark.parametrize("kind", [crontab, counted])
def test_a_change_of_the_zone_moves_times_of_day(kind: Any) -> None:
    entry = begun(kind(0, 15))
    changed = change(entry, defined(kind(0, 15), timezone="Europe/Berlin"), NOON_MS, UTC)

    assert changed.standing.tick == NOON_MS + 2 * HOUR


@pytest.mark.parametrize("kind", [crontab, counted])
def test_no_tick_is_before_a_new_start(kind: Any) -> None:
    definition = defined(kind(0), start=NOON + timedelta(hours=5))

    assert change(begun(kind(0)), definition, NOON_MS, UTC).standing.tick == NOON_MS + 5 * HOUR


def test_another_time_of_day_is_by_the_wall_clock_of_the_app() -> None:
    changed = change(begun(10), defined(crontab(0, 15)), NOON_MS, BERLIN)

    assert changed.standing.tick == NOON_MS + 2 * HOUR


def test_a_change_after_the_zone_of_the_app_has_changed_loses_no_day() -> None:
    # In Berlin it is time at NOON + 2 h, in UTC an hour later.
    entry = begun(crontab(0, 15))
    changed = change(entry, defined(crontab(0, 15), args=[1]), NOON_MS, BERLIN)

    assert changed.standing.tick == NOON_MS + 2 * HOUR


@pytest.mark.parametrize("every", [steps(10), solar("sunrise", 52.5, 13.4)], ids=["own", "solar"])
@pytest.mark.parametrize("looks", [0, 1])
def test_a_change_of_other_options_leaves_the_tick_of_what_is_asked_for_it(
    every: BaseSchedule, looks: int
) -> None:
    entry = begun(every)
    for _ in range(looks):
        assert entry.look is not None
        entry = fired(entry, entry.look)
    assert entry.standing.tick is not None
    now = entry.standing.tick - 9 * SECOND
    definition = defined(every, args=[1])

    assert change(entry, definition, now, UTC).standing == replace(
        entry.standing, edition=edition_of(definition)
    )


def test_what_is_paused_stays_so_when_it_is_changed() -> None:
    entry = pause(fired(begun(10), NOON_MS + 10_000))
    definition = defined(7, args=[1])
    changed = change(entry, definition, NOON_MS + 11_000, UTC)

    assert changed == Periodic(
        definition,
        replace(entry.standing, edition=edition_of(definition), anchor=NOON_MS + 10_000),
    )
    assert resume(changed, NOON_MS + 11_000, UTC).standing.tick == NOON_MS + 17_000


@pytest.mark.parametrize("overlap", ["allow", "skip", "queue_one"])
def test_a_change_of_other_options_forgets_no_tick_that_is_due(overlap: str) -> None:
    entry = begun(3600, overlap=overlap)
    definition = defined(3600, overlap=overlap, args=["loud"])

    # Dispatchers look each half second: for that long what is due may not be scheduled yet.
    changed = change(entry, definition, NOON_MS + HOUR + 100, UTC)

    assert changed.standing == replace(entry.standing, edition=edition_of(definition))


def test_a_change_of_other_options_leaves_what_was_missed_to_be_caught_up() -> None:
    entry = begun(3600, catch_up="all")
    now = NOON_MS + 3 * HOUR + 30 * MINUTE

    firing = fire(change(entry, defined(3600, catch_up="all", args=[1]), now, UTC), now, UTC)

    assert firing is not None
    assert firing.ticks == tuple(NOON_MS + hours * HOUR for hours in (1, 2, 3))


def test_a_start_that_exists_twice_is_no_new_one_when_it_is_read_from_its_record() -> None:
    start = datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN)  # clocks are set back
    now = round(start.timestamp() * 1000)
    entry = begin(defined(10, start=start), now, UTC)
    entry = change(standing(entry, last=now + 10_000), defined(7, start=start), now + 11_000, UTC)
    entry = Periodic.unpack("bell", entry.pack())

    changed = change(entry, defined(7, start=start, args=[1]), now + 11_000, UTC)

    assert changed.standing.tick == entry.standing.tick


# -- paused and resumed


def test_what_is_paused_keeps_its_last_tick_and_count() -> None:
    entry = fired(begun(10), NOON_MS + 10_000)

    assert pause(entry) == replace(
        entry, standing=replace(entry.standing, tick=None, status="paused")
    )


def test_ticks_that_are_withdrawn_by_a_pause_do_not_count_and_may_come_again() -> None:
    entry = fired(begun(0.5), NOON_MS)
    paused = pause(entry, seconds(1, 1.5, 2))

    assert (paused.standing.tick, paused.standing.count, paused.status) == (None, 1, "paused")
    assert resume(paused, NOON_MS + 600, UTC) == replace(
        paused, standing=replace(paused.standing, tick=NOON_MS + 1000, status="on")
    )


def test_a_pause_is_corrected_by_what_was_withdrawn_after_it() -> None:
    entry = fired(begun(0.5), NOON_MS)

    assert pause(pause(entry), seconds(2)) == pause(entry, seconds(2))


@pytest.mark.parametrize("unfired", [(0.5,), (1,), (1, 1.5), (0.5, 1, 1.5)])
def test_ticks_that_could_not_be_withdrawn_count_and_do_not_come_again(
    unfired: tuple[float, ...],
) -> None:
    # Somebody has run the last one by hand before its time.
    entry = fired(begun(0.5), NOON_MS)
    paused = pause(entry, seconds(*unfired))

    assert paused.standing == replace(
        entry.standing, tick=None, count=4 - len(unfired), status="paused"
    )
    assert resume(paused, NOON_MS + 100, UTC).standing.tick == NOON_MS + 2500


def test_the_last_tick_of_what_is_paused_may_be_its_start() -> None:
    start = NOON + timedelta(hours=5)
    first, second = NOON_MS + 5 * HOUR, NOON_MS + 6 * HOUR
    entry = fired(fired(begun(crontab(0), start=start), first), second - AHEAD)

    assert pause(entry, [second]).standing.last == first


def test_the_last_tick_of_what_is_paused_is_one_that_was_scheduled() -> None:
    entry = fired(begun(0.5), NOON_MS)

    assert pause(entry, seconds(1.5, 2)).standing.last == NOON_MS + 1000


def test_another_interval_goes_on_from_the_last_tick_after_a_pause() -> None:
    entry = fired(fired(begun(10), NOON_MS + 8_000), NOON_MS + 18_000)
    resumed = resume(pause(entry, seconds(20)), NOON_MS + 19_000, UTC)
    changed = change(resumed, defined(60), NOON_MS + 19_500, UTC)

    assert changed.standing.anchor == NOON_MS + 10_000


def test_a_tick_that_could_not_be_withdrawn_does_not_come_again() -> None:
    # Somebody has run the second of three by hand before its time.
    entry = fired(begun(0.5), NOON_MS - 500)
    resumed = resume(pause(entry, seconds(0.5, 1.5)), NOON_MS, UTC)

    assert NOON_MS + 1000 not in upcoming(resumed, 10, UTC)


def test_what_is_left_of_ticks_that_were_withdrawn_is_by_the_wall_clock_of_the_app() -> None:
    first, second = NOON_MS + 2 * HOUR, NOON_MS + 26 * HOUR
    entry = standing(begin(defined(crontab(0, 15)), NOON_MS, BERLIN), last=second, count=2)

    assert pause(entry, [second], BERLIN).standing.last == first


def test_what_is_asked_for_its_ticks_and_never_ran_has_no_last_one() -> None:
    entry = begun(steps(10))
    tick = entry.standing.tick
    assert tick is not None

    assert pause(fired(entry, tick - AHEAD), [tick]).standing == replace(
        entry.standing, tick=None, status="paused"
    )


@pytest.mark.parametrize("unfired", [(0.5,), (0.5, 1), (0.5, 1, 1.5, 2)])
def test_what_never_ran_has_no_last_tick_when_it_is_paused(unfired: tuple[float, ...]) -> None:
    entry = begun(0.5, max_runs=len(unfired))
    paused = pause(fired(entry, NOON_MS), seconds(*unfired))

    assert paused.standing == replace(entry.standing, tick=None, status="paused")


def test_a_pause_does_not_go_through_all_ticks_that_there_were() -> None:
    now = NOON_MS + 30 * DAY
    (tick,) = upcoming(begin(defined(counted(0)), now, UTC), 1, UTC)
    entry = standing(begun(counted(0)), last=tick, count=720)
    before = counted.asked

    paused = pause(entry, [tick])

    assert (paused.standing.last, paused.standing.count) == (tick - HOUR, 719)
    assert counted.asked - before < 100


@pytest.mark.parametrize(
    ("now", "tick"), [(10.0, 20.0), (19.999, 20.0), (20.0, 30.0), (1000.5, 1010.0)]
)
def test_what_is_resumed_goes_on_in_its_phase_and_catches_nothing_up(
    now: float, tick: float
) -> None:
    entry = pause(fired(begun(10, catch_up="all"), NOON_MS + 10_000))
    (now_ms, tick_ms) = seconds(now, tick)

    assert resume(entry, now_ms, UTC) == replace(
        entry, standing=replace(entry.standing, tick=tick_ms, status="on")
    )


def test_what_was_scheduled_ahead_is_not_scheduled_again_when_resumed() -> None:
    entry = pause(fired(begun(10), NOON_MS + 8_000))

    assert resume(entry, NOON_MS + 8_500, UTC).standing.tick == NOON_MS + 20_000


@pytest.mark.parametrize(
    ("entry", "now"),
    [
        (begun(10, end=NOON + timedelta(seconds=25)), 21.0),
        (begun(NOON + timedelta(seconds=20)), 20.0),
        (standing(begun(10, max_runs=2), count=2), 0.0),
    ],
)
def test_what_has_no_tick_left_has_ended_when_it_is_resumed(entry: Periodic, now: float) -> None:
    resumed = resume(pause(entry), seconds(now)[0], UTC)

    assert resumed == replace(entry, standing=replace(entry.standing, tick=None, status="ended"))


def test_what_is_resumed_before_its_start_waits_for_it() -> None:
    entry = pause(begun(crontab(0), start=NOON + timedelta(hours=5)))

    assert resume(entry, NOON_MS, UTC).standing.tick == NOON_MS + 5 * HOUR


def test_what_is_resumed_follows_the_wall_clock_of_the_app() -> None:
    entry = pause(begin(defined(crontab(0, 15)), NOON_MS, BERLIN))

    assert resume(entry, NOON_MS, BERLIN).standing.tick == NOON_MS + 2 * HOUR


# -- ticks to come


@pytest.mark.parametrize(
    ("definition", "count", "ticks"),
    [
        (defined(10), 3, seconds(10, 20, 30)),
        (defined(10), 1, seconds(10)),
        (defined(10), 0, ()),
        (defined(10, max_runs=2), 5, seconds(10, 20)),
        (defined(10, end=NOON + timedelta(seconds=30)), 5, seconds(10, 20, 30)),
        (defined(NOON + timedelta(hours=1)), 5, seconds(3600)),
        (defined(10, start=NOON + timedelta(seconds=100)), 2, seconds(110, 120)),
        (defined(crontab("*/20", "12-13")), 4, seconds(1200, 2400, 3600, 4800)),
        (defined(NOON), 5, ()),
    ],
)
def test_the_next_ticks_are_those_that_will_be_fired(
    definition: Definition, count: int, ticks: Ticks
) -> None:
    assert upcoming(begin(definition, NOON_MS, UTC), count, UTC) == list(ticks)


@pytest.mark.parametrize(("runs", "ticks"), [(None, seconds(20, 30)), (2, seconds(20)), (1, ())])
def test_the_next_ticks_are_not_those_that_are_scheduled(runs: int | None, ticks: Ticks) -> None:
    entry = fired(begun(10, max_runs=runs), NOON_MS + 8_000)

    assert upcoming(entry, 2, UTC) == list(ticks)


def test_nothing_is_to_come_of_what_is_paused() -> None:
    assert upcoming(pause(begun(10)), 5, UTC) == []


def test_the_next_ticks_are_by_the_wall_clock_of_the_app() -> None:
    entry = begin(defined(crontab(0, "15,17")), NOON_MS, BERLIN)

    assert upcoming(entry, 2, BERLIN) == [NOON_MS + 2 * HOUR, NOON_MS + 4 * HOUR]


@pytest.mark.parametrize(
    ("now", "ticks"),
    [
        (0.0, (0.5, 1, 1.5, 2)),
        (0.499, (0.5, 1, 1.5, 2)),
        (0.5, (1, 1.5, 2)),
        (1.999, (2,)),
        (2.0, ()),
        (3.0, ()),
    ],
)
def test_ticks_ahead_are_scheduled_and_not_due_yet(now: float, ticks: tuple[float, ...]) -> None:
    entry = fired(begun(0.5), NOON_MS)

    assert ahead_of(entry, seconds(now)[0], UTC) == list(seconds(*ticks))


def test_there_are_no_ticks_ahead_of_what_has_not_been_fired() -> None:
    assert ahead_of(begun(0.5), NOON_MS, UTC) == []


def test_ticks_ahead_are_known_of_what_is_paused() -> None:
    entry = pause(fired(begun(crontab()), NOON_MS + 59_000))

    assert ahead_of(entry, NOON_MS + 59_000, UTC) == [NOON_MS + 60_000]


def test_ticks_ahead_are_by_the_wall_clock_of_the_app() -> None:
    tick = NOON_MS + 2 * HOUR
    entry = standing(begin(defined(crontab(0, 15)), NOON_MS, BERLIN), last=tick)

    assert ahead_of(entry, tick - 1, BERLIN) == [tick]


def test_all_ticks_ahead_are_known_however_many_they_are() -> None:
    entry = standing(begun(0.001), last=NOON_MS + AHEAD)

    assert ahead_of(entry, NOON_MS + 100, UTC) == list(range(NOON_MS + 101, NOON_MS + AHEAD + 1))


@pytest.mark.parametrize("every", [steps(10), solar("sunrise", 52.5, 13.4)], ids=["own", "solar"])
def test_the_tick_ahead_is_known_of_what_is_asked_for_it(every: BaseSchedule) -> None:
    entry = begun(every)
    tick = entry.standing.tick
    assert tick is not None

    assert ahead_of(fired(entry, tick - AHEAD), tick - SECOND, UTC) == [tick]
