"""Write the table of test helpers into ``docs/development.md``:
``python -m tests.support.helpers_page``.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "development.md"

#: How to run a helper: the page says it elsewhere.
_RUN = re.compile(r": `python -m [^`]+`")
_TABLE = re.compile(r"(<!-- helpers -->\n).*?(<!-- end of helpers -->)", re.DOTALL)


def purposes() -> dict[str, str]:
    """Return the first paragraph of each helper's docstring, by its path below ``tests/support``.

    A folder has the docstring of its ``__init__.py``.
    """
    found = {}
    for path in sorted(HERE.rglob("*.py")):
        docstring = ast.get_docstring(ast.parse(path.read_text("utf-8")))
        if path != HERE / "__init__.py":
            name = path.relative_to(HERE).as_posix().replace("__init__.py", "")
            first = (docstring or "").partition("\n\n")[0].replace("\n", " ")
            found[name] = first.replace("``", "`")
    return found


def with_table(text: str) -> str:
    """Return the page with the current helpers.

    The page names the programs that write parts of pages elsewhere.
    """
    rows = [
        f"| `{name}` | {_RUN.sub('', purpose)} |\n"
        for name, purpose in purposes().items()
        if not name.endswith("_page.py")
    ]
    table = "".join(["| helper | purpose |\n", "| --- | --- |\n", *rows])
    return _TABLE.sub(lambda match: f"{match[1]}{table}{match[2]}", text)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text("utf-8")), "utf-8")
