"""The results of a soak in rows. No I/O."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

#: Columns, and the counts of a verdict in each.
COLUMNS = {
    "sent": ("published",),
    "runs": ("runs",),
    "again": ("again",),
    "forgotten": ("forgotten",),
    "lost": ("lost",),
    "twice": ("twice",),
    "early": ("early",),
    "other": ("dead", "left", "unknown"),
}
#: Columns about runs. In the rows of a test that runs no tasks these have :data:`NO_RUNS`.
RUN_COLUMNS = ("runs", "again", "twice")
NO_RUNS = "\N{EN DASH}"
BEGIN, END = "<!-- soak begins -->\n", "<!-- soak ends -->"
VIOLATIONS = ("lost", "twice", "early", "other")

#: The tests with a parameter for each script.
SCRIPTS = "test_faults_scripts.py"

_SEED = re.compile(r"-?\b\d{3,}\b")


@dataclass
class Row:
    """One test with one set of parameters, over all seeds and rounds."""

    times: int = 0
    seconds: float = 0.0
    failed: int = 0
    runs_tasks: bool = True
    counts: Counter[str] = field(default_factory=Counter)
    notes: dict[str, str] = field(default_factory=dict)

    def add(self, line: Mapping[str, Any]) -> None:
        """Count one test."""
        self.times += 1
        self.seconds += line["seconds"]
        self.failed += line["failed"]
        verdict = line["verdict"] or {}
        self.runs_tasks = verdict.get("runs", 0) is not None
        for column, kinds in COLUMNS.items():
            self.counts[column] += sum(verdict.get(kind) or 0 for kind in kinds)
        self.notes |= verdict.get("notes", {})

    @property
    def is_right(self) -> bool:
        """Whether nothing failed."""
        return not self.failed and not any(self.counts[kind] for kind in VIOLATIONS)


def rows_of(lines: Iterable[Mapping[str, Any]]) -> dict[str, Row]:
    """Return rows from the lines of the collector; tests without a verdict only if they failed."""
    rows: dict[str, Row] = {}
    for line in lines:
        if line["verdict"] or line["failed"] or line["skipped"]:
            row = rows.setdefault(name_of(line["test"]), Row())
            if not line["skipped"]:
                row.add(line)
    return rows


def name_of(test: str) -> str:
    """Return a test's name for people, without its seed; all scripts are one row."""
    name, _, parameters = test.rpartition("::")[2].partition("[")
    if SCRIPTS in test:
        parameters = ""
    parameters = _SEED.sub("", parameters.rstrip("]")).strip("-")
    text = name.removeprefix("test_").replace("_", " ")
    return f"{text}: {parameters}" if parameters else text


def table_of(rows: Mapping[str, Row], title: str) -> Table:
    """Draw the rows."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("fault")
    for column in ("times", *COLUMNS):
        table.add_column(column, justify="right")
    table.add_column("")
    for name, row in rows.items():
        state = "WRONG" if not row.is_right else "ok" if row.times else "not run"
        table.add_row(name, *_cells(row), state, style="" if row.is_right else "red")
    return table


def markdown_of(rows: Mapping[str, Row], title: str) -> str:
    """Return the rows as a Markdown table, and the names of tests that were not reached."""
    run = {name: row for name, row in rows.items() if row.times}
    not_reached = [name for name, row in rows.items() if not row.times]

    def lines() -> Iterator[str]:
        yield f"{title}\n"
        yield "| fault | times | " + " | ".join(COLUMNS) + " |"
        yield "| --- " + "| ---: " * (len(COLUMNS) + 1) + "|"
        for name, row in run.items():
            yield f"| {name} | " + " | ".join(_cells(row)) + " |"
        if not_reached:
            names = "; ".join(not_reached)
            yield f"\nTests for which there was no time: {len(not_reached)}: {names}."

    return "\n".join(lines()) + "\n"


def placed(page: str, table: str) -> str:
    """Return the page with a new table between its two marks; the rest stays unchanged."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"the page has no place for the table: {BEGIN} … {END}")
    return f"{before}{begin}{table}{end}{after}"


def _cells(row: Row) -> list[str]:
    hidden = () if row.runs_tasks else RUN_COLUMNS
    counts = (NO_RUNS if name in hidden else f"{row.counts[name]:,}" for name in COLUMNS)
    return [f"{row.times:,}", *counts]
