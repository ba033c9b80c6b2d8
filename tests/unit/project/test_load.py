"""``python -m tests.load`` keeps the machine busy beside a command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from celery_delayq.testing import has_ended, wait_until
from tests.support import TIMEOUT

ROOT = Path(__file__).parents[3]
LOAD = [sys.executable, "-m", "tests.load"]


@pytest.mark.parametrize("code", [0, 3])
def test_the_exit_code_is_the_commands(code: int) -> None:
    command = [sys.executable, "-c", f"raise SystemExit({code})"]

    assert subprocess.call([*LOAD, "2", *command], cwd=ROOT, timeout=TIMEOUT) == code


def test_without_a_number_of_processes_it_says_how_it_is_used() -> None:
    done = subprocess.run(
        [*LOAD, "make"], cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT
    )

    assert done.returncode == 1
    assert "python -m tests.load PROCESSES [command ...]" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_busy_processes_end_with_it(number: signal.Signals) -> None:
    with subprocess.Popen([*LOAD, "2"], cwd=ROOT) as process:
        busy = wait_until(
            lambda: found if len(found := psutil.Process(process.pid).children()) == 2 else None,
            TIMEOUT,
            "both compute",
        )
        assert busy is not None
        os.kill(process.pid, number)
        process.wait(TIMEOUT)

    wait_until(lambda: all(has_ended(each.pid) for each in busy), TIMEOUT, "both have ended")
