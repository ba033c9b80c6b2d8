"""Looks at a periodic entry at any times: what they schedule is as its ticks are foretold."""

from __future__ import annotations

from datetime import timedelta

from celery.schedules import BaseSchedule, crontab
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_delayq.periodic.definition import AHEAD
from celery_delayq.periodic.policy import BURST, GRACE, upcoming
from tests.support.periodic import (
    DAY,
    HOUR,
    MINUTE,
    NOON,
    NOON_MS,
    UTC,
    begun,
    counted,
    state,
    steps,
    walk,
)

INTERVALS = st.integers(50, 20_000)
GAPS = st.lists(st.integers(0, 5000) | st.integers(0, 60_000), min_size=1, max_size=15)


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
    entry = state(entry, tick=NOON_MS + 26 * DAY + 90 * MINUTE)
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
