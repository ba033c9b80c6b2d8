"""Print the tables of ``docs/scaling.md``: ``python -m tests.simulation [--real]``."""

from __future__ import annotations

import sys

from tests.simulation import real
from tests.simulation.fleet import Fleet, Outcome, steady

#: Seconds before a run is measured, and seconds of the measurement.
WARM, SECONDS = 5.0, 10.0

SIZES = (1, 2, 10, 50, 100, 200, 1_000, 10_000)
REAL_SIZES = (1, 10, 50, 200)

#: Number of runs with lost dispatchers, of which the worst is shown; sizes of their fleets.
RUNS = 20
LOSING_SIZES = (2, 10, 200, 1_000)


def main() -> None:
    """Print a row for each size of a fleet."""
    print(
        "| dispatchers | due a second | queues | calls an entry | calls a second "
        "| late p50, p99, ms |"
    )
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    for size, rate, queues in [*((size, 200, 1) for size in SIZES), (100, 10, 1), (50, 1000, 500)]:
        fleet = Fleet(size, steady(rate, WARM + SECONDS), queues=queues)
        fleet.run(WARM)
        print(_row(size, rate, queues, fleet.run(SECONDS)))
    print(
        "\n| dispatchers | the one on duty is killed, ms late | half | nine of ten | all but one |"
    )
    print("| ---: | ---: | ---: | ---: | ---: |")
    for size in LOSING_SIZES:
        lost = (1, max(1, size // 2), max(1, size * 9 // 10), size - 1)
        print(f"| {size:,} | {' | '.join(f'{_worst(size, each):.0f}' for each in lost)} |")
    if "--real" in sys.argv[1:]:
        print("\nReal, in one process on this machine:\n")
        for size in REAL_SIZES:
            outcome, load = real.run(size, 200, SECONDS)
            print(_row(size, 200, 1, outcome), f"Redis {load:.1%} of a core")


def _worst(size: int, lost: int) -> float:
    """Return the highest lateness (ms) of an entry when the one on duty and others are killed."""
    late = []
    for seed in range(RUNS):
        fleet = Fleet(size, steady(200, WARM + 1.5, seed), seed=seed)
        fleet.run(WARM)
        on_duty = fleet.on_duty
        others = [each for each in fleet.members if each is not on_duty]
        fleet.kill([*([on_duty] if on_duty else []), *others][:lost])
        late += fleet.run(1.5).late
    return max(late) * 1000


def _row(size: int, rate: int, queues: int, outcome: Outcome) -> str:
    late = (f"{outcome.percentile(part) * 1000:.1f}" for part in (0.5, 0.99))
    return (
        f"| {size:,} | {rate:,} | {queues:,} | {outcome.calls_an_entry:.2f} "
        f"| {outcome.calls_a_second:,.0f} | {', '.join(late)} |"
    )


if __name__ == "__main__":
    main()
