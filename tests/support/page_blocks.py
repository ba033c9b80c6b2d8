"""The Python and console blocks of the pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
#: Pages whose blocks are counted.
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
#: Pages all of whose blocks a test runs.
RUN_BY = {"README.md": "tests/acceptance/test_packages.py"}
#: Languages of blocks that can be run.
LANGUAGES = ("python", "console", "bash", "sh")

#: A block, with the comment above that says why it is not run, which test runs it, or that it is in
#: one file with the block above.
_BLOCK = re.compile(
    r"(?:^ *<!-- (?P<how>not run|run by|continues): (?P<why>[^\n]+) -->\n)?"
    r"^(?P<indent> *)```(?P<language>\w+)\n(?P<code>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)
#: A name at the top of a block: the rest of the block is a file of this name.
_FILE = re.compile(r"^# (?P<name>[\w/]+\.py)\n", re.MULTILINE)


class Block(NamedTuple):
    """A block of a page."""

    page: Path
    line: int
    language: str
    code: str
    not_run: str
    run_by: str

    @property
    def files(self) -> dict[str, str]:
        """The files that the block is made of, by name; none if it begins with no name."""
        names = [*_FILE.finditer(self.code)]
        if not names or names[0].start() != 0:
            return {}
        ends = [*(each.start() for each in names[1:]), len(self.code)]
        return {
            each["name"]: self.code[each.end() : end] for each, end in zip(names, ends, strict=True)
        }

    @property
    def is_suite(self) -> bool:
        """Whether pytest runs the block."""
        return "pytest" in self.code or "def test_" in self.code

    @property
    def commands(self) -> list[str]:
        """The commands of a console block, without their output."""
        lines = re.sub(r"\\\n", "", self.code).splitlines()
        return [line[2:] for line in map(str.strip, lines) if line.startswith("$ ")]


def blocks_of(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page that can be run. One that continues begins with the one above."""
    text, code = page.read_text("utf-8"), ""
    for found in _BLOCK.finditer(text):
        if found["language"] not in LANGUAGES:
            continue
        indent = len(found["indent"])
        above = f"{code}\n" if found["how"] == "continues" else ""
        own = "".join(line[indent:] for line in found["code"].splitlines(keepends=True))
        code = above + own
        yield Block(
            page=page,
            line=text.count("\n", 0, found.start("language")) + 1,
            language=found["language"],
            code=code,
            not_run=found["why"] if found["how"] == "not run" else "",
            run_by=found["why"] if found["how"] == "run by" else RUN_BY.get(page.name, ""),
        )


def all_blocks() -> list[Block]:
    """Return the blocks of all pages."""
    return [block for page in PAGES for block in blocks_of(page)]
