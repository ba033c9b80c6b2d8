"""Every figure of the README and the docs is that of the one file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.figures import FIGURES, PAGES, TABLES, WORDS, fill, filled, merge, read
from tests.benchmarks.model import Better, Row
from tests.benchmarks.report import Run

CONTENT = json.loads(FIGURES.read_text("utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_says_what_the_file_says(page: Path) -> None:
    text = page.read_text("utf-8")

    assert filled(text, read()) == text


def test_every_table_and_word_has_one_place_at_least() -> None:
    text = "".join(page.read_text("utf-8") for page in PAGES)

    tables = set(re.findall(r"<!-- figures: ([\w-]+) -->", text))
    not_measured_yet = {"history"}
    assert tables >= {"main", "readme", *TABLES} - not_measured_yet
    assert set(re.findall(r"<!-- figure: ([\w-]+) -->", text)) == set(WORDS)


def test_every_figure_says_when_and_how_it_was_measured() -> None:
    used = {one["run"] for kind in ("figures", "values") for one in CONTENT[kind].values()}

    assert used == set(CONTENT["runs"])
    for run in CONTENT["runs"].values():
        assert re.match(r"\d{4}-\d\d-\d\d", run["facts"]["date"])
        assert "bench" in run["command"]


def test_what_is_measured_again_takes_its_place_in_file_and_pages(tmp_path: Path) -> None:
    path, page = tmp_path / "figures.json", tmp_path / "page.md"
    path.write_text(FIGURES.read_text("utf-8"), "utf-8")
    page.write_text("<!-- figures: retries -->\n<!-- end of figures -->\n", "utf-8")
    facts: dict[str, Any] = {"date": "2031-02-03T04:05:06+00:00", "cores": 64}
    row = Row("retry-p50", "a retry", "ms", Better.LOWER, digits=1)

    merge(Run(facts, [row.figure([4.0], [1.0])]), "bench --only retries", path)
    fill([page], path)

    lines = page.read_text("utf-8").splitlines()
    assert "| a retry, ms ↓ | 4.0 | 1.0 | 0.25 |  |  |" in lines
    assert "2031-02-03, 64 cores: `bench --only retries`." in lines
    before, after = CONTENT["figures"], json.loads(path.read_text("utf-8"))["figures"]
    assert {name for name in before if before[name] != after[name]} == {"retry-p50"}
