"""When a dispatcher looks next, on a clock that the test moves."""

from __future__ import annotations

import pytest

from celery_delayq.dispatch.dispatcher import STAND_BACK, STREAM_INTERVAL, PollTimer
from celery_delayq.store.scripting.replies import Look, Promoted


@pytest.fixture
def timer() -> PollTimer:
    """A timer at a moment that stands still."""
    return PollTimer(1.0, lambda: 100.0)


def look(wait_ms: int | None) -> Look:
    return Look(
        10_000_000, None if wait_ms is None else "q", None if wait_ms is None else 10_000 + wait_ms
    )


@pytest.mark.parametrize(
    ("due", "wait", "queue"),
    [(None, 1.0, None), (250, 0.25, "q"), (3_600_000, 1.0, "q"), (-500, 0, "q")],
    ids=["nothing is scheduled", "soon", "later than the interval", "overdue"],
)
def test_it_sleeps_until_the_earliest_due_but_no_longer_than_the_interval(
    timer: PollTimer, due: int | None, wait: float, queue: str | None
) -> None:
    timer.after(look(due))

    assert timer.wait() == pytest.approx(wait)
    assert timer.queue == queue


def test_an_entry_that_has_become_due_is_looked_at_now(timer: PollTimer) -> None:
    timer.after(look(250))

    assert timer.wait() == pytest.approx(0.25)
    timer.monotonic = lambda: 100.3
    assert timer.wait() == 0
    assert timer.queue == "q"


@pytest.mark.parametrize(
    ("due", "hint", "wait", "queue"), [(None, 0.1, 0.1, "other"), (100, 0.5, 0.1, "q")]
)
def test_only_a_hint_of_something_earlier_shortens_the_sleep(
    timer: PollTimer, due: int | None, hint: float, wait: float, queue: str
) -> None:
    timer.after(look(due))
    timer.wake_in("other", hint)

    assert timer.wait() == pytest.approx(wait)
    assert timer.queue == queue


def test_a_full_batch_is_followed_by_the_next_at_once(timer: PollTimer) -> None:
    timer.after(look(0), Promoted(look(0), moved=100, dead_lettered=0))

    assert timer.wait() == 0


def test_a_steady_stream_is_moved_several_at_a_time(timer: PollTimer) -> None:
    timer.after(look(1), Promoted(look(1), moved=1, dead_lettered=0))

    assert timer.wait() == pytest.approx(max(0.001, STREAM_INTERVAL))


def test_who_keeps_losing_to_others_stands_back_but_never_for_long(timer: PollTimer) -> None:
    waits = []
    for _ in range(10):
        timer.after(look(0), Promoted(look(0), moved=0, dead_lettered=0))
        waits.append(timer.wait())

    assert waits == sorted(waits)
    assert waits[0] == pytest.approx(STAND_BACK[0] + STREAM_INTERVAL)
    assert waits[-1] == pytest.approx(STAND_BACK[1] + STREAM_INTERVAL)


def test_whoever_moves_something_is_at_the_front_again(timer: PollTimer) -> None:
    for _ in range(10):
        timer.after(look(0), Promoted(look(0), moved=0, dead_lettered=0))
    timer.after(look(5), Promoted(look(5), moved=1, dead_lettered=0))

    assert timer.wait() == pytest.approx(0.005)
