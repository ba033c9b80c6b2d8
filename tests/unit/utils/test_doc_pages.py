"""Pages that a text names get their address."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from celery_delayq.utils.doc_pages import with_addresses

ROOT = Path(__file__).parents[3]
PROJECT = (ROOT / "pyproject.toml").read_text("utf-8")
[ADDRESS] = re.findall('^Documentation = "(.*)"$', PROJECT, re.MULTILINE)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see docs/periodic.md", f"see {ADDRESS}/periodic.md"),
        ("(docs/known-gaps.md)", f"({ADDRESS}/known-gaps.md)"),
        (f"{ADDRESS}/periodic.md", f"{ADDRESS}/periodic.md"),
        ("the folder docs/ of mydocs/a.md", "the folder docs/ of mydocs/a.md"),
    ],
)
def test_a_page_that_a_text_names_gets_its_address(text: str, expected: str) -> None:
    assert with_addresses(text) == expected


def test_each_page_that_the_package_names_exists() -> None:
    texts = [each.read_text("utf-8") for each in (ROOT / "celery_delayq").rglob("*.py")]
    named = {page for text in texts for page in re.findall(r"\bdocs/[\w-]+\.md", text)}
    assert [page for page in sorted(named) if not (ROOT / page).exists()] == []
