"""The table of the last soak in the docs is the one that the soak has written."""

from __future__ import annotations

from typing import Any

import pytest

from tests.soak.__main__ import PAGE
from tests.soak.rows import BEGIN, END, NO_RUNS, markdown_of, placed, rows_of

LINE: dict[str, Any] = {
    "test": "tests/acceptance/test_faults_workers.py::test_killing_workers[2013]",
    "seconds": 3.0,
    "failed": False,
    "skipped": False,
    "verdict": {"published": 1200, "runs": 1207, "again": 7, "forgotten": 3},
}


def test_the_table_takes_the_place_of_the_last_one_and_nothing_else_changes() -> None:
    page = PAGE.read_text("utf-8")
    table = markdown_of(rows_of([LINE]), "1 minute")

    new = placed(page, table)

    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    assert new == f"{before}{BEGIN}{table}{END}{after}"
    assert "| killing workers | 1 | 1,200 | 1,207 | 7 | 3 | 0 | 0 | 0 | 0 |" in new.splitlines()
    assert placed(new, table) == new


def test_a_test_that_runs_no_tasks_has_no_number_of_runs() -> None:
    line = {**LINE, "verdict": {"published": 1200, "runs": None, "again": 0, "lost": 2}}

    *_, last = markdown_of(rows_of([line]), "1 minute").splitlines()

    expected = f"1 | 1,200 | {NO_RUNS} | {NO_RUNS} | 0 | 2 | {NO_RUNS} | 0 | 0"
    assert last == f"| killing workers | {expected} |"


def test_tests_for_which_there_was_no_time_are_named() -> None:
    skipped = [
        {"test": f"a.py::test_{name}", "failed": False, "skipped": True, "verdict": None}
        for name in ("one", "an_other[5-redis]")
    ]

    *_, blank, last = markdown_of(rows_of([LINE, *skipped]), "1 minute").splitlines()

    assert (blank, last) == ("", "Tests for which there was no time: 2: one; an other: 5-redis.")


def test_a_page_without_a_place_is_refused() -> None:
    with pytest.raises(ValueError, match="no place for the table"):
        placed("# Guarantees", "| |")
