"""Fleets of dispatchers in virtual time: what they cost, and what a lost member costs."""

from __future__ import annotations

import pytest

from tests.simulation.fleet import Fleet, Outcome, steady

#: Seconds of a run before it is measured.
WARM = 3.0


def run(size: int, rate: float, seconds: float = 5.0, queues: int = 1) -> Outcome:
    """Let a fleet promote *rate* entries a second."""
    fleet = Fleet(size, steady(rate, WARM + seconds), queues=queues)
    fleet.run(WARM)
    return fleet.run(seconds)


@pytest.mark.parametrize("size", [1, 2, 10, 50, 100, 200])
def test_200_due_a_second_cost_at_most_two_calls_an_entry(size: int) -> None:
    outcome = run(size, 200)

    assert outcome.calls_an_entry <= 2
    assert outcome.percentile(0.99) <= 0.025


@pytest.mark.parametrize("rate", [1, 4, 10])
@pytest.mark.parametrize("size", [100, 1000])
def test_when_little_is_due_no_fleet_makes_more_than_120_calls_a_second(
    size: int, rate: int
) -> None:
    assert run(size, rate).calls_a_second <= 120


@pytest.mark.parametrize("size", [1000, 10_000])
def test_the_work_does_not_grow_with_the_fleet(size: int) -> None:
    outcome = run(size, 200, 2.0)

    assert outcome.calls_an_entry <= 2
    assert outcome.percentile(0.99) <= 0.025


def test_500_queues_and_50_dispatchers_are_in_time() -> None:
    assert run(50, 1000, queues=500).percentile(0.99) <= 0.05


@pytest.mark.parametrize("lose", [Fleet.kill, Fleet.stop])
@pytest.mark.parametrize("size", [2, 10, 50, 200])
def test_the_one_on_duty_is_replaced_within_half_a_second(size: int, lose: object) -> None:
    fleet = Fleet(size, steady(200, 10))
    assert callable(lose)
    worst = []
    for _ in range(size - 1 if size < 10 else 5):
        fleet.run(1.0)
        lose(fleet, [fleet.on_duty])
        worst += fleet.run(0.7).late

    assert max(worst) < 0.5


@pytest.mark.parametrize("size", [10, 200, 2000])
def test_the_last_survivor_is_no_more_than_half_a_second_late(size: int) -> None:
    fleet = Fleet(size, steady(200, 8))
    fleet.run(WARM)

    fleet.kill(fleet.members[1:])
    outcome = fleet.run(5.0)

    assert max(outcome.late) < 0.5
    assert len(outcome.late) > 900


def test_a_fleet_in_which_half_is_replaced_each_second_is_in_time() -> None:
    fleet = Fleet(40, steady(200, 10))
    worst = []
    for turn in range(8):
        alive = [each for each in fleet.members if each.alive]
        fleet.kill(alive[turn % 2 :: 2])
        for _ in range(20):
            fleet.join(0.1)
        worst += fleet.run(1.0).late

    assert max(worst) < 0.5


def test_dispatchers_that_start_together_do_not_all_aim_at_the_first_entry() -> None:
    fleet = Fleet(200, [2.0], apart=0.0)
    fleet.run(1.9)

    outcome = fleet.run(0.2)

    assert len(outcome.late) == 1
    assert outcome.late[0] < 0.005
    assert outcome.calls < 100
