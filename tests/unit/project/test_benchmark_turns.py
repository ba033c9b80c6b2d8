"""The comparison of two checkouts."""

from __future__ import annotations

import pytest

from tests.benchmarks.model import Better
from tests.benchmarks.turns import Comparison


def compared(better: Better, here: list[float], there: list[float]) -> Comparison:
    """Compare these rounds; stock's are 100, 101, 99 here and 100 there."""
    row = Comparison("Publishing", "tasks/s", better.value)
    for ours, others, stock in zip(here, there, (100, 101, 99), strict=True):
        row.add({"ours": ours, "stock": stock}, {"ours": others, "stock": 100})
    return row


@pytest.mark.parametrize(
    ("better", "here", "cost", "reached"),
    [
        (Better.LOWER, [101, 100, 102], 1.01, True),
        (Better.LOWER, [110, 111, 109], 1.1, False),
        (Better.HIGHER, [200, 201, 199], 0.5, True),
        (Better.HIGHER, [50, 50, 50], 2.0, False),
    ],
)
def test_a_row_may_cost_as_much_more_as_twice_the_noise_of_stock(
    better: Better, here: list[float], cost: float, reached: bool
) -> None:
    row = compared(better, here, [100, 100, 100])

    assert row.cost == pytest.approx(cost)
    assert row.noise == pytest.approx(1.2533 * 0.01 / 3**0.5, rel=1e-3)
    assert row.reached is reached


def test_a_round_that_measured_nothing_counts_on_neither_side() -> None:
    row = compared(Better.LOWER, [0, 100, 103], [100, 100, 100])

    assert row.ours == [1.0, 1.03]
