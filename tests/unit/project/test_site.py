"""The list of pages, from which the site and ``llms.txt`` are made."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.site import versions
from tests.site.pages import DOCS, FILES_URL, INDEX, ROOT, Page, Part, for_site, llms, parts

TEXT = INDEX.read_text("utf-8")
EXAMPLE = """# Title

> One sentence
> in two lines.

## How-to

### Failures

- [Retries](retries.md): waits, see [keys](keys.md).

## Reference

- [Keys](keys.md): all.
"""


def test_the_index_has_each_page_once() -> None:
    listed = Counter(page.name for part in parts(TEXT) for page in part.pages)

    assert listed == Counter(path.stem for path in DOCS.glob("*.md") if path != INDEX)


def test_each_line_of_a_list_in_the_index_is_a_page() -> None:
    assert len(re.findall(r"^- ", TEXT, re.M)) == sum(len(part.pages) for part in parts(TEXT))


def test_the_parts_of_an_index_are_its_headings() -> None:
    assert parts(EXAMPLE) == [
        Part("How-to: Failures", [Page("retries", "Retries", "waits, see [keys](keys.md).")]),
        Part("Reference", [Page("keys", "Keys", "all.")]),
    ]


def test_llms_txt_has_a_summary_and_all_pages() -> None:
    assert llms(EXAMPLE).splitlines() == [
        "# Title",
        "",
        "> One sentence in two lines.",
        "",
        "## How-to: Failures",
        "",
        "- [Retries](_sources/retries.md.txt): waits, see keys.",
        "",
        "## Reference",
        "",
        "- [Keys](_sources/keys.md.txt): all.",
    ]


def test_links_out_of_the_docs_lead_to_the_files_of_the_repository() -> None:
    assert for_site("[a](../README.md#start) and [b](keys.md)") == (
        f"[a]({FILES_URL}README.md#start) and [b](keys.md)"
    )


@pytest.mark.parametrize("part", ["Tutorial", "How-to", "Reference", "Explanation", "Contributing"])
def test_the_index_has_each_kind_of_page(part: str) -> None:
    assert any(each.title.partition(":")[0] == part for each in parts(TEXT))


def test_the_readme_leads_to_the_index() -> None:
    assert "(docs/index.md)" in (ROOT / "README.md").read_text("utf-8")


def test_a_site_lists_its_versions_with_the_newest_first_and_leads_to_a_released_one(
    tmp_path: Path,
) -> None:
    built, site = tmp_path / "built", tmp_path / "site"
    built.mkdir()
    (built / "page.html").write_text("old", "utf-8")
    for version in ("0.9.0", "0.10.0", "0.11.0.dev0", "0.9.0"):
        versions.add(built, version, site)
        (built / "page.html").write_text("new", "utf-8")
        (site / "images").mkdir(exist_ok=True)

    listed = json.loads((site / versions.LIST).read_text("utf-8"))

    assert listed == ["0.11.0.dev0", "0.10.0", "0.9.0"]
    assert 'url=0.10.0/"' in (site / "index.html").read_text("utf-8")
    assert (site / "0.9.0" / "page.html").read_text("utf-8") == "new"
