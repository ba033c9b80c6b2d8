"""The year of flights through Spark, as a user runs it, with fewer flights and a shorter day."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import date
from itertools import islice
from pathlib import Path

import psutil
import pytest

from tests.support import TIMEOUT

pytest.importorskip("pyspark")

from celery_delayq.testing import wait_until
from example_project.flights import load_flights
from tests.support.skips import need_java

pytestmark = pytest.mark.nightly

CHECKOUT = Path(__file__).resolve().parents[2]
DEMO = [sys.executable, "-m", "example_project.spark"]
#: Summer time begins on the next day.
DAY = date(2013, 3, 9)
FLIGHTS = 2000


@pytest.fixture(autouse=True)
def _has_java() -> None:
    need_java()


def arguments(folder: Path) -> list[str]:
    files = ["--html", str(folder / "new" / "page.html"), "--summary", str(folder / "sums.json")]
    return [*DEMO, "--day", str(DAY), "--flights", str(FLIGHTS), "--seconds", "8", *files]


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process runs. Java leaves a zombie: the shell that has started it."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def command_of(process: psutil.Process) -> str:
    """Return the command line, an empty one if the process has just ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def test_source_queue_and_history_agree_on_each_flight(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()

    done = subprocess.run(
        arguments(tmp_path),
        cwd=CHECKOUT,
        env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        check=False,
        timeout=4 * TIMEOUT,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert [*temporary.iterdir()] == []

    flights = [*islice(load_flights(DAY, days=4), FLIGHTS)]
    assert len(flights) == FLIGHTS
    cancelled = [flight for flight in flights if flight.cancelled]
    late = [f for f in flights if f.delay is not None and f.delay.total_seconds() > 0]
    of_day = [f for f in flights if f.scheduled.date() == DAY and not f.cancelled]
    rest = FLIGHTS - len(cancelled) - len(of_day)
    assert min(len(cancelled), len(late), len(of_day), rest) > 0, "something of everything"

    told = json.loads((tmp_path / "sums.json").read_text())
    assert told["problems"] == []
    assert told["source"] == {
        "flights": FLIGHTS,
        "late": len(late),
        "cancelled": len(cancelled),
    }
    assert (told["first"]["rows"], told["first"]["new"]) == (FLIGHTS, FLIGHTS)
    second = told["second"]
    assert second["replaced"] == len(late)
    assert second["orphans"] == second["cancelled"] == len(cancelled)
    assert second["kept"] == FLIGHTS - len(late) - len(cancelled)
    assert (second["new"], second["refused"]) == (0, 0)
    assert told["forward"]["replaced"] == len(of_day)
    found = {
        kind: (line["source"], line["queue"], line["history"], line["wrong"])
        for kind, line in told["lines"].items()
    }
    assert found == {
        "run": (len(of_day), 0, len(of_day), 0),
        "waits": (rest, rest, 0, 0),
        "cancelled": (len(cancelled), 0, 0, 0),
        "unknown": (0, 0, 0, 0),
    }

    page = (tmp_path / "new" / "page.html").read_text()
    assert page.lower().startswith("<!doctype html>")
    assert "flights.remind" in page
    assert f"{len(of_day):,}" in page


def test_an_interrupted_run_leaves_no_process_and_no_folder_behind(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    with subprocess.Popen(
        arguments(tmp_path),
        cwd=CHECKOUT,
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert any("through Spark into the queue" in line for line in process.stdout)
            children = psutil.Process(process.pid).children(recursive=True)
            commands = [*map(command_of, children)]
            assert any("redis-server" in command for command in commands)
            assert any("org.apache.spark" in command for command in commands)

            process.send_signal(signal.SIGINT)
            process.communicate(timeout=4 * TIMEOUT)
        finally:
            process.kill()

    assert process.returncode != 0
    wait_until(lambda: not any(map(is_alive, children)), timeout=TIMEOUT)
    assert [*temporary.iterdir()] == []
    assert not (tmp_path / "sums.json").exists()
