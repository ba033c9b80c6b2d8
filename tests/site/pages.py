"""The sources of the site: the pages of ``docs`` with a table of contents, and those of the code.

``docs/index.md`` is the one list of pages. Each of its headings is a part of the site's navigation,
and each line of a list below the heading is a page of this part.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.site import reference

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
INDEX = DOCS / "index.md"
#: Where a forge shows the files of this repository.
URLS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]
FILES_URL = f"{URLS['Source']}/blob/main/"

_HEADING = re.compile(r"^(##+) (.+)$")
_PAGE = re.compile(r"^- \[(?P<title>[^\]]+)\]\((?P<file>[\w./-]+)\.md\): (?P<text>.+)$")
#: A link to a file outside of ``docs``.
_OUTSIDE = re.compile(r"\]\(\.\./([^)\s]+)\)")
#: The part of the index that lists the pages made from the code, too.
_REFERENCE = "Reference"


class Page(NamedTuple):
    """A page of the site: its file without ``.md``, and its line in the index."""

    name: str
    title: str
    text: str


class Part(NamedTuple):
    """A part of the navigation."""

    title: str
    pages: list[Page]


def parts(index: str) -> list[Part]:
    """Return the parts that an index lists, without those that have no page."""
    found: list[Part] = []
    heads: list[str] = []
    for line in index.splitlines():
        if heading := _HEADING.match(line):
            heads = [*heads[: len(heading[1]) - 2], heading[2]]
            found.append(Part(": ".join(heads), []))
        elif page := _PAGE.match(line):
            found[-1].pages.append(Page(page["file"], page["title"], page["text"]))
    return [part for part in found if part.pages]


def index_of_site() -> str:
    """Return the index with the pages that are made from the code."""
    head, heading, rest = INDEX.read_text("utf-8").partition(f"\n## {_REFERENCE}\n\n")
    if not heading:
        raise LookupError(f"{INDEX} has no heading '## {_REFERENCE}'")
    made = [
        f"- [{page.title}](reference/{name}.md): {page.text}\n"
        for name, page in reference.pages().items()
    ]
    return head + heading + "".join(made) + rest


def write(folder: Path) -> None:
    """Write all sources of the site."""
    folder.mkdir(parents=True)
    shutil.copytree(DOCS / "images", folder / "images")
    shutil.copy(DOCS / "figures.json", folder)
    for path in DOCS.glob("*.md"):
        (folder / path.name).write_text(for_site(path.read_text("utf-8")), "utf-8")
    (folder / "reference").mkdir()
    for name, page in reference.pages().items():
        (folder / "reference" / f"{name}.md").write_text(page.source(), "utf-8")
    index = index_of_site()
    (folder / INDEX.name).write_text(for_site(index) + "".join(_contents(index)), "utf-8")


def for_site(text: str) -> str:
    """Return a page whose links to files outside of ``docs`` lead to the forge."""
    return _OUTSIDE.sub(rf"]({FILES_URL}\1)", text)


def _contents(index: str) -> Iterator[str]:
    """Yield a hidden table of contents for each part of the index: the side bar shows them."""
    for part in parts(index):
        names = "\n".join(page.name for page in part.pages)
        yield f"\n```{{toctree}}\n:hidden:\n:caption: {part.title}\n\n{names}\n```\n"


def write_llms(output: Path) -> None:
    """Write ``llms.txt``, a list of all pages in Markdown, into the folder of the built site."""
    (output / "llms.txt").write_text(llms(index_of_site()), "utf-8")


def llms(index: str) -> str:
    """Return the text of ``llms.txt`` (https://llmstxt.org): all pages, by part.

    Links are relative, since the site has no fixed address.
    """
    title = index.partition("\n")[0]
    summary = index.partition("\n> ")[2].partition("\n\n")[0].replace("\n> ", " ")
    lines = [title, "", f"> {summary}", ""]
    for part in parts(index):
        lines += [f"## {part.title}", ""]
        lines += [f"- [{p.title}](_sources/{p.name}.md.txt): {_plain(p.text)}" for p in part.pages]
        lines.append("")
    return "\n".join(lines)


def _plain(text: str) -> str:
    """Return a text of the index without links."""
    return re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text)
