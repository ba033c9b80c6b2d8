"""`FakeClock` and `wait_until`."""

from __future__ import annotations

import itertools

import pytest

from celery_delayq.testing import FakeClock, wait_until


def test_a_fake_clock_stands_still() -> None:
    clock = FakeClock(now_ms=1_000)

    assert (clock.now_ms(), clock.now_ms()) == (1_000, 1_000)
    assert clock.monotonic() == 0


def test_both_clocks_advance_together() -> None:
    clock = FakeClock(now_ms=1_000)

    clock.advance(2.5)

    assert clock.now_ms() == 3_500
    assert clock.monotonic() == 2.5


def test_many_small_steps_lose_no_millisecond() -> None:
    clock = FakeClock()
    start = clock.now_ms()

    for _ in range(10_000):
        clock.advance(0.001)

    assert clock.now_ms() - start == 10_000


def test_a_jump_moves_the_wall_clock_alone() -> None:
    clock = FakeClock(now_ms=10_000)

    clock.jump(-3)

    assert clock.now_ms() == 7_000
    assert clock.monotonic() == 0


@pytest.mark.parametrize("seconds", [-1, float("nan")])
def test_time_does_not_run_backwards(seconds: float) -> None:
    with pytest.raises(ValueError, match="cannot advance"):
        FakeClock().advance(seconds)


def test_wait_until_returns_what_became_true() -> None:
    answers = itertools.chain([0, None, ""], itertools.repeat("ready"))

    assert wait_until(lambda: next(answers), 5, interval=0) == "ready"


def test_wait_until_says_what_it_waited_for() -> None:
    with pytest.raises(TimeoutError, match=r"waited 0\.01 s in vain for the gate to open"):
        wait_until(lambda: False, 0.01, "the gate to open", interval=0.001)


def test_wait_until_asks_for_the_text_only_after_the_time_is_over() -> None:
    with pytest.raises(TimeoutError, match="in vain for 3 flights"):
        wait_until(lambda: False, 0, lambda: "3 flights")


def test_wait_until_looks_once_even_without_time() -> None:
    assert wait_until(lambda: True, 0)


def test_wait_until_passes_errors_on() -> None:
    with pytest.raises(ZeroDivisionError):
        wait_until(lambda: 1 // 0, 5)
