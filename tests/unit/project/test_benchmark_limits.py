"""The count of what a rate has handed out, in any window."""

from __future__ import annotations

import pytest

from tests.support.permits import most_above

RATE = 100.0


def above(*samples: tuple[float, int]) -> float:
    return most_above(samples, RATE)


def test_tasks_at_their_rate_are_none_above_it() -> None:
    assert above((0.0, 0), (0.5, 50), (1.0, 100), (3.0, 120)) == 0


def test_a_burst_counts_in_its_own_window_even_if_the_whole_is_below_the_rate() -> None:
    assert above((0.0, 0), (1.0, 10), (1.1, 40), (3.0, 50)) == pytest.approx(20)


def test_the_window_with_most_need_not_begin_or_end_with_the_samples() -> None:
    assert above((0.0, 0), (0.1, 0), (0.2, 15), (0.3, 30), (9.0, 31)) == pytest.approx(10)
