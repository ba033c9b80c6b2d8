"""Compare this checkout with another: ``python -m tests.benchmarks.turns PATH [--minutes 50]``.

Each measurement runs in both checkouts in turns, round after round, so that a change of the
machine's speed affects both. Each checkout uses its own ``.venv``.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from .model import Better

ROOT = Path(__file__).parents[2]
#: Cost of a task for a producer, a worker and a dispatcher, and cost of a call.
HOT_PATH = ("publish", "batch", "immediate", "lateness", "burst", "idle", "control")
#: A round measures each row once on each side.
ONE_ROUND = ("--rounds", "1", "--load-rounds", "1", "--worker-rounds", "1")


@dataclass
class Comparison:
    """One row of both checkouts: the extra cost of a task here, and its noise."""

    title: str
    unit: str
    better: str
    #: Cost of a round here relative to the other checkout (1: the same), ours and stock's.
    ours: list[float] = field(default_factory=list)
    stock: list[float] = field(default_factory=list)

    def add(self, here: dict[str, Any], there: dict[str, Any]) -> None:
        """Add a round of both checkouts; a row with a value of 0 has no ratio."""
        for side, costs in (("ours", self.ours), ("stock", self.stock)):
            if here[side] and there[side]:
                ratio = here[side] / there[side]
                costs.append(1 / ratio if self.better == Better.HIGHER.value else ratio)

    @property
    def cost(self) -> float:
        """Median over the rounds."""
        return statistics.median(self.ours)

    @property
    def noise(self) -> float:
        """Standard error of a median, from the rounds of stock Celery, whose code is the same."""
        rounds = self.stock if len(self.stock) > 1 else self.ours
        return 1.2533 * statistics.stdev(rounds) / math.sqrt(len(rounds))

    @property
    def reached(self) -> bool:
        """Whether the extra cost of the row is at most twice the noise."""
        return self.cost <= 1 + 2 * self.noise


def figures_of(checkout: Path, measurement: str) -> dict[str, dict[str, Any]]:
    """Measure one round in a checkout; return its figures by name."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        python = str(checkout / ".venv/bin/python")
        command = [python, "-m", "tests.benchmarks", "--only", measurement, *ONE_ROUND]
        subprocess.run(
            [*command, "--json", file.name], cwd=checkout, check=True, capture_output=True
        )
        return {each["name"]: each for each in json.load(file)["figures"]}


def add_round(
    rows: dict[str, Comparison], measurement: str, other: Path, *, here_first: bool
) -> None:
    """Measure one round in both checkouts, one after the other."""
    order = (ROOT, other) if here_first else (other, ROOT)
    found = {checkout: figures_of(checkout, measurement) for checkout in order}
    for name in found[ROOT].keys() & found[other].keys():
        here, there = found[ROOT][name], found[other][name]
        row = rows.setdefault(name, Comparison(here["title"], here["unit"], here["better"]))
        row.add(here, there)


def show(rows: dict[str, Comparison], console: Console) -> None:
    """Print the table."""
    table = Table("row", "unit", "rounds", "cost here / there", "noise", "at most 1 + 2 x noise")
    for name, row in rows.items():
        if len(row.ours) > 1:
            cells = f"{len(row.ours)}", f"{row.cost:.3f}", f"{row.noise:.1%}"
            table.add_row(name, row.unit, *cells, "yes" if row.reached else "NO")
    console.print(table)


@click.command()
@click.argument("other", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--only", multiple=True, default=HOT_PATH, help="Only this measurement; repeatable.")
@click.option("--rounds", default=7, help="Rounds of each measurement at least.")
@click.option("--minutes", default=0.0, help="Go on with further rounds for this time.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write JSON here.")
def main(
    other: Path, only: tuple[str, ...], rounds: int, minutes: float, json_path: Path | None
) -> None:
    """Measure this checkout beside the one in OTHER, in turns."""
    ends = time.monotonic() + minutes * 60
    rows: dict[str, Comparison] = {}
    failed: dict[str, int] = defaultdict(int)
    done = 0
    while done < rounds or time.monotonic() < ends:
        for measurement in only:
            try:
                add_round(rows, measurement, other.resolve(), here_first=done % 2 == 0)
            except (subprocess.CalledProcessError, json.JSONDecodeError):
                failed[measurement] += 1
        done += 1
        Console(stderr=True).print(f"round {done}", highlight=False)
        if json_path:
            json_path.write_text(json.dumps({name: vars(row) for name, row in rows.items()}))
    console = Console(width=140)
    show(rows, console)
    for measurement, count in failed.items():
        console.print(f"{measurement}: {count} rounds failed")
    if failed or not all(row.reached for row in rows.values() if len(row.ours) > 1):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
