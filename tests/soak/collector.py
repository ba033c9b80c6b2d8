"""Pytest plugin that writes the verdict of each fault test, and starts no test too late."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

RESULTS_VARIABLE = "DELAYQ_SOAK_RESULTS"
DEADLINE_VARIABLE = "DELAYQ_SOAK_DEADLINE"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Start no test after the end of the time."""
    if time.time() > float(os.environ[DEADLINE_VARIABLE]):
        pytest.skip("the time is over")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write one line of JSON for each test, and for each failed set-up or tear-down."""
    if "PYTEST_XDIST_WORKER" in os.environ or (report.when != "call" and report.passed):
        return  # the process that started the workers writes
    line: dict[str, Any] = {
        "test": report.nodeid,
        "failed": report.failed,
        "skipped": report.skipped,
        "seconds": report.duration,
        "verdict": dict(report.user_properties).get("verdict"),
        "error": report.longreprtext if report.failed else "",
    }
    with Path(os.environ[RESULTS_VARIABLE]).open("a", encoding="utf-8") as results:
        results.write(json.dumps(line) + "\n")
