"""Write the table of ``docs/errors.md``: ``python -m tests.support.errors_page``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from celery_delayq import InvalidItem, ManyFailed, errors

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"

_TABLE = re.compile(r"(<!-- errors -->\n).*?(<!-- end of errors -->)", re.DOTALL)
_CURE = re.compile(r"^Cure: (.+?)(?:\n\n|\Z)", re.MULTILINE | re.DOTALL)


def with_table(text: str) -> str:
    """Return the page with the exceptions of the code."""
    table = "".join(_rows())
    return _TABLE.sub(lambda match: match[1] + table + match[2], text)


def _rows() -> Iterator[str]:
    """Yield the lines of the table.

    Raises
    ------
    LookupError
        The docstring of a class has no cure.
    """
    yield "| exception | bases | cause | cure |\n| --- | --- | --- | --- |\n"
    own = [each for each in vars(errors).values() if inspect.isclass(each)]
    own = [each for each in own if each.__module__ == errors.__name__]
    for cls in (*own, InvalidItem, ManyFailed):
        name = cls.__name__
        text = inspect.getdoc(cls) or ""
        cure = _CURE.search(text)
        if cure is None:
            raise LookupError(f"the docstring of {name} has no paragraph 'Cure: …'")
        cause = text.partition("\n\n")[0]
        bases = ", ".join(f"`{base.__name__}`" for base in cls.__bases__)
        yield f"| `{name}` | {bases} | {_line(cause)} | {_line(cure[1])} |\n"


def _line(text: str) -> str:
    """Return a docstring's text as one line of a table."""
    return " ".join(text.replace("``", "`").split())


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text("utf-8")), "utf-8")
