"""``python -m tests.soak [--minutes 30] [--seed N]``: the fault tests in their long form.

Round after round with new seeds until the time is over; then a table of what was lost, run twice or
early. The exit code is 1 if anything was.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from tests.soak import collector
from tests.soak.rows import Row, markdown_of, placed, rows_of, table_of
from tests.support.commit import commit_name
from tests.support.faults.scale import LONG_VARIABLE, SEED_VARIABLE

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
#: The most important files come first, in case the time is short.
FIRST = (
    "workers",
    "leases",
    "limits",
    "dispatchers",
    "fleets",
    "redis",
    "cluster",
    "rabbitmq",
    "rabbitmq_cuts",
    "clocks",
    "scripts",
)
HARNESS = ("checker", "proxy")
#: Other tests that are long in a soak. They come after the faults.
OTHERS = (
    "acceptance/test_cancel_race.py",
    "acceptance/test_retry_patterns.py",
    "integration/admin/test_fsck_running.py",
    "lua/test_state_machine.py",
    "lua/test_limits_machine.py",
)
#: The page with the table of the last soak.
PAGE = ROOT / "docs" / "fault-tests.md"
#: Tests that run at the same time. Each mostly waits for a lease, a delay or a process to start.
SIDE_BY_SIDE = 3
LOG_LINES = 60
#: Columns without a terminal.
WIDTH = 120


class Soak:
    """Rounds of tests, and their results so far."""

    def __init__(self, folder: Path, minutes: float, seed: int, options: list[str]) -> None:
        self.results = folder / "results.jsonl"
        self.log = folder / "pytest.log"
        self.results.touch()
        self.round = 0
        self.seed = seed
        self.codes: list[int] = []
        self._options = options
        self._start = time.time()
        self._end = self._start + minutes * 60

    def rounds(self) -> Iterator[subprocess.Popen[bytes]]:
        """Start rounds one after the other while there is time."""
        while time.time() < self._end and not any(self.codes):
            self.round += 1
            # The seeds of a round are consecutive.
            seed = self.seed + 1000 * (self.round - 1)
            with self.log.open("ab") as log, self._started(seed, log) as pytest:
                yield pytest
            self.codes.append(pytest.returncode)

    def _started(self, seed: int, log: Any) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "pytest", "-p", collector.__name__]
        command += ["-n", str(SIDE_BY_SIDE), "--maxschedchunk", "1"]  # so they begin in this order
        command += ["-p", "no:cacheprovider", "--tb=short", *map(str, files()), *self._options]
        env = {
            **os.environ,
            LONG_VARIABLE: "1",
            SEED_VARIABLE: str(seed),
            collector.RESULTS_VARIABLE: str(self.results),
            collector.DEADLINE_VARIABLE: str(self._end),
        }
        return subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=subprocess.STDOUT)

    def lines(self) -> list[dict[str, Any]]:
        """Return the lines of the collector."""
        return [json.loads(line) for line in self.results.read_text("utf-8").splitlines()]

    def rows(self) -> dict[str, Row]:
        """Return the rows so far."""
        return rows_of(self.lines())

    @property
    def title(self) -> str:
        """The rounds so far, in one line."""
        minutes = (time.time() - self._start) / 60
        return f"soak: {minutes:.1f} minutes, round {self.round}, seed {self.seed}"

    @property
    def is_right(self) -> bool:
        """Whether no test failed, and at least one has run."""
        rows = self.rows()
        # 5: pytest had no test left when the time was over.
        ended_well = all(code in (0, 5) for code in self.codes)
        return bool(rows) and ended_well and all(row.is_right for row in rows.values())


def files() -> list[Path]:
    """Return the fault tests, the most important first, without tests of the harness itself.

    Other tests that are long in a soak follow.
    """
    acceptance = TESTS / "acceptance"
    first, harness = (
        [acceptance / f"test_faults_{name}.py" for name in part] for part in (FIRST, HARNESS)
    )
    others = set(acceptance.glob("test_faults_*.py")).difference(first, harness)
    return [*first, *sorted(others), *(TESTS / name for name in OTHERS)]


def main(arguments: list[str] | None = None) -> int:
    """Run the soak and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30, help="when to begin no more (30)")
    parser.add_argument("--seed", type=int, help="first seed (a new one each time)")
    parser.add_argument("--markdown", action="store_true", help=f"put the table into {PAGE.name}")
    known, options = parser.parse_known_args(arguments)
    seed = known.seed if known.seed is not None else random.randrange(1_000, 1_000_000)
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    with tempfile.TemporaryDirectory(prefix="delayq-soak-") as folder:
        soak = Soak(Path(folder), known.minutes, seed, options)
        console.print(f"seed {seed}")
        follow(soak, console)
        for line in soak.lines():
            if line["failed"]:
                console.print(f"[bold red]{line['test']}[/]")
                console.print(line["error"], markup=False, highlight=False)
        if not soak.rows() or any(code not in (0, 1, 5) for code in soak.codes):
            console.print(*soak.log.read_text("utf-8").splitlines()[-LOG_LINES:], sep="\n")
        console.print(table_of(soak.rows(), soak.title))
        if known.markdown:
            day = f"{datetime.now(timezone.utc):%Y-%m-%d}"
            about = f"`make soak`, {day}, commit {commit_name()}, {os.cpu_count()} cores"
            table = markdown_of(soak.rows(), f"{about}, {soak.title.removeprefix('soak: ')}.")
            PAGE.write_text(placed(PAGE.read_text("utf-8"), table), "utf-8")
        return 0 if soak.is_right else 1


def follow(soak: Soak, console: Console) -> None:
    """Show the table as it grows; without a terminal, print a line for each test."""
    with Live(console=console, auto_refresh=False, transient=True) as live:
        told = 0
        for pytest in soak.rounds():
            while True:
                ended = pytest.poll() is not None
                lines = soak.lines()
                if console.is_terminal:
                    live.update(table_of(rows_of(lines), soak.title), refresh=True)
                else:
                    for line in lines[told:]:
                        state = "WRONG" if line["failed"] else "-" if line["skipped"] else "ok"
                        print(f"{state:5} {line['seconds']:6.1f} s  {line['test']}", flush=True)
                told = len(lines)
                if ended:
                    break
                time.sleep(1)


if __name__ == "__main__":
    sys.exit(main())
