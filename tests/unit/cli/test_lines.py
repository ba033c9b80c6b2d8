"""Lines that fit any width: columns give way by their rank, and names are harmless."""

from __future__ import annotations

import re

import pytest
from rich.text import Text

from celery_delayq.cli.lines import MAX_TEXT, Column, Paper

HOSTILE = ("\x1b]0;stolen\x07\x1b[2J[red]", "界" * 300, "x" * 10_000_000, "\u202etxt", "a\r\nb", "")
COLUMNS = [
    Column[str]("name", lambda row: row, 0, 6),
    Column[str]("number", lambda row: Text(f"{len(row):,}"), 0, is_number=True),
    Column[str]("kind", lambda _: "kind", 2),
    Column[str]("", lambda row: row[::-1][:200], 1, 4),
]


@pytest.mark.parametrize("width", [1, 2, 7, 20, 40, 80, 200, 1_000_000])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_each_line_fits_and_steers_no_terminal(width: int, ascii_only: bool) -> None:
    paper = Paper(width, ascii_only)
    lines = paper.table(COLUMNS, HOSTILE)
    for text in HOSTILE:
        lines += [paper.cut(text), *paper.folded(text), *paper.flow([Text("a"), paper.cut(text)])]

    for line in lines:
        assert line.cell_len <= max(width, 2)
        assert len(line.plain) <= 6 * MAX_TEXT
        assert not re.search(r"[\x00-\x1f\x7f-\x9f\u200b\u202e]", line.plain)
        if ascii_only:
            assert "…" not in line.plain


def test_columns_of_a_high_rank_give_way_first() -> None:
    titles = {
        width: Paper(width).table(COLUMNS, ["mail"])[0].plain.split() for width in (80, 20, 14)
    }

    assert titles == {
        80: ["name", "number", "kind"],
        20: ["name", "number"],
        14: ["name", "number"],
    }
    assert [line.plain for line in Paper(14).table(COLUMNS, ["mail", "x" * 1000])] == [
        "name    number", "mail         4", "xxxxx…   1,000"
    ]  # fmt: skip


def test_sentences_are_folded_between_words() -> None:
    lines = Paper(10).folded("due at noon, abcdefghijklmnop")

    assert [line.plain for line in lines] == ["due at", "noon,", "abcdefghij", "klmnop"]
