"""When a dispatcher looks next, on a clock that the test moves."""

from __future__ import annotations

import pytest

from celery_delayq.dispatch.dispatcher import BREATH, STAND_BACK, Pace
from celery_delayq.store.scripting.replies import Look, Promoted
from celery_delayq.testing.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def pace(clock: FakeClock) -> Pace:
    return Pace(1.0, clock.monotonic)


def look(wait_ms: int | None) -> Look:
    return Look(
        10_000_000, None if wait_ms is None else "q", None if wait_ms is None else 10_000 + wait_ms
    )


def test_with_nothing_scheduled_it_looks_again_after_the_interval(pace: Pace) -> None:
    pace.after(look(None))

    assert pace.wait() == pytest.approx(1.0)
    assert pace.queue is None


def test_it_sleeps_until_the_earliest_entry_is_due(pace: Pace, clock: FakeClock) -> None:
    pace.after(look(250))

    assert pace.wait() == pytest.approx(0.25)
    clock.advance(0.3)
    assert pace.wait() == 0
    assert pace.queue == "q"


def test_it_never_sleeps_longer_than_the_interval(pace: Pace) -> None:
    pace.after(look(3_600_000))

    assert pace.wait() == pytest.approx(1.0)


def test_what_is_overdue_is_looked_at_now(pace: Pace) -> None:
    pace.after(look(-500))

    assert pace.wait() == 0


def test_a_hint_of_something_earlier_shortens_the_sleep(pace: Pace) -> None:
    pace.after(look(None))
    pace.hint("other", 0.1)

    assert pace.wait() == pytest.approx(0.1)
    assert pace.queue == "other"


def test_a_hint_of_something_later_changes_nothing(pace: Pace) -> None:
    pace.after(look(100))
    pace.hint("other", 0.5)

    assert pace.wait() == pytest.approx(0.1)
    assert pace.queue == "q"


def test_a_full_batch_is_followed_by_the_next_at_once(pace: Pace) -> None:
    pace.after(look(0), Promoted(look(0), moved=100, dead_lettered=0))

    assert pace.wait() == 0


def test_a_steady_stream_is_moved_several_at_a_time(pace: Pace) -> None:
    pace.after(look(1), Promoted(look(1), moved=1, dead_lettered=0))

    assert pace.wait() == pytest.approx(max(0.001, BREATH))


def test_who_keeps_losing_to_others_stands_back_but_never_for_long(pace: Pace) -> None:
    waits = []
    for _ in range(10):
        pace.after(look(0), Promoted(look(0), moved=0, dead_lettered=0))
        waits.append(pace.wait())

    assert waits == sorted(waits)
    assert waits[0] == pytest.approx(STAND_BACK[0] + BREATH)
    assert waits[-1] == pytest.approx(STAND_BACK[1] + BREATH)


def test_whoever_moves_something_is_at_the_front_again(pace: Pace) -> None:
    for _ in range(10):
        pace.after(look(0), Promoted(look(0), moved=0, dead_lettered=0))
    pace.after(look(5), Promoted(look(5), moved=1, dead_lettered=0))

    assert pace.wait() == pytest.approx(0.005)
