"""The example's pipeline: where the year is placed, what must agree, and the Java it needs."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from tests.support import TIMEOUT

pytest.importorskip("pyspark")

from celery_delayq.spark.reconcile import Summary
from example_project.flights import midnight
from example_project.spark.agreement import CANCELLED, RUN, UNKNOWN, WAITS, Line, News, problems
from example_project.spark.placing import weeks_until

CHECKOUT = Path(__file__).resolve().parents[3]
WEEK = timedelta(weeks=1)

NEWS = News(flights=100, late=40, cancelled=10)
FIRST = Summary(rows=100, new=100)
SECOND = Summary(rows=90, replaced=40, kept=50, orphans=10, cancelled=10)
FORWARD = {"new": 0, "kept": 0, "replaced": 7, "refused": 0}
LINES = (
    Line(RUN, 7, 0, 7, 0, None),
    Line(WAITS, 83, 83, 0, 0, None),
    Line(CANCELLED, 10, 0, 0, 0, None),
    Line(UNKNOWN, 0, 0, 0, 0, None),
)
UNFINISHED = {"ready": 0, "leased": 0, "dead": 0}


def found(**given: Any) -> list[str]:
    what = {
        "news": NEWS,
        "first": FIRST,
        "second": SECOND,
        "forward": FORWARD,
        "lines": LINES,
        "unfinished": UNFINISHED,
    }
    return [*problems(**{**what, **given})]


@pytest.mark.parametrize("day", [date(2026, 1, 1), date(2026, 7, 31), date(2028, 2, 29)])
@pytest.mark.parametrize("second", [0, 1, 86_399])
def test_the_year_begins_in_one_to_two_weeks_and_keeps_its_weekdays(day: date, second: int) -> None:
    for more in range(7):
        at = datetime(day.year, day.month, day.day, tzinfo=timezone.utc)
        now = at + timedelta(days=more, seconds=second)

        shift = weeks_until(now)

        assert shift % WEEK == timedelta()
        assert WEEK <= midnight(date(2013, 1, 1)) + shift - now < 2 * WEEK


def test_a_year_that_would_begin_in_just_a_week_does() -> None:
    begins = midnight(date(2013, 1, 1))

    assert weeks_until(begins + 9 * WEEK) == 10 * WEEK
    assert weeks_until(begins + 9 * WEEK + timedelta(microseconds=1)) == 11 * WEEK


def test_sums_that_agree_are_no_problem() -> None:
    assert found() == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"first": replace(FIRST, new=99)}, "the first run: new is 99, and 100 by the source"),
        ({"first": replace(FIRST, refused=1)}, "the first run: refused is 1, and 0 by"),
        ({"second": replace(SECOND, cancelled=9)}, "the second run: cancelled is 9, and 10 by"),
        ({"second": replace(SECOND, replaced=39, kept=51)}, "replaced is 39, and 40 by"),
        ({"second": replace(SECOND, present={"dead": 1})}, "present is {'dead': 1}, and {} by"),
        ({"forward": {**FORWARD, "replaced": 6}}, "the day brought forward: 6 replaced of 7 rows"),
        ({"forward": {**FORWARD, "new": 1}}, "the day brought forward: 1 new of 7 rows"),
        (
            {"lines": (replace(LINES[0], history=8, wrong=1, example="x:1"), *LINES[1:])},
            "run: 1 tasks are not as they should be, as x:1",
        ),
        (
            {"lines": (*LINES[:3], Line(UNKNOWN, 0, 1, 0, 1, "x:2"))},
            "unknown: 1 tasks are not as they should be, as x:2",
        ),
        (
            {"lines": (LINES[0], replace(LINES[1], source=82), *LINES[2:])},
            "7 flights to be run and 82 that wait are not 90",
        ),
        ({"unfinished": {**UNFINISHED, "ready": 2}}, "2 tasks are ready"),
    ],
)
def test_what_does_not_agree_is_reported(changes: dict[str, Any], message: str) -> None:
    assert any(message in problem for problem in found(**changes))


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ([], 1, "Spark needs Java, and there is none on PATH; install Java 17 or newer (apt"),
        (["--day", "2014-01-01"], 2, "2014-01-01 is outside the data, which covers 2013"),
        (["--flights", "0"], 2, "0 is not in the range"),
    ],
)
def test_what_cannot_work_is_reported_in_one_line(
    options: list[str], code: int, message: str, tmp_path: Path
) -> None:
    environment = {name: text for name, text in os.environ.items() if name != "JAVA_HOME"}
    files = ["--html", str(tmp_path / "page.html"), "--summary", str(tmp_path / "sums.json")]

    done = subprocess.run(
        [sys.executable, "-m", "example_project.spark", *files, *options],
        cwd=CHECKOUT,
        env={**environment, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT,
    )

    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr
