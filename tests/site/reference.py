"""The pages that Sphinx makes from the code alone: public names, and commands."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from tests.support import api_page

_API = "api_"


class Made(NamedTuple):
    """A page that is made from the code: its title, its line in the index, and its directives."""

    title: str
    text: str
    directives: str

    def source(self) -> str:
        """Return the page's Markdown."""
        return f"# {self.title}\n\n{self.text}\n\n```{{eval-rst}}\n{self.directives}\n```\n"


@cache
def pages() -> Mapping[str, Made]:
    """Return the pages by name."""
    commands = ".. click:: celery_delayq.cli:delayq\n   :prog: celery -A APP delayq\n"
    found = {
        "cli": Made(
            "Command line",
            "All commands with their options and examples.",
            f"{commands}   :nested: full\n",
        )
    }
    for name in api_page.MODULES:
        module = import_module(name)
        summary = (inspect.getdoc(module) or "").partition("\n")[0].replace("``", "`")
        directives = "\n".join(
            _directive(name, public, value) for public, value in api_page.names_of(module)
        )
        found[_API + name.replace(".", "_")] = Made(f"`{name}`", summary, directives)
    return found


def _directive(module: str, name: str, value: Any) -> str:
    """Return the directive of a public name."""
    if inspect.isclass(value):
        members = [member for member, _ in api_page.members_of(value) if member]
        listed = f"   :members: {', '.join(members)}\n" if members else ""
        return f".. autoclass:: {module}.{name}\n   :no-index-entry:\n{listed}"
    if inspect.isroutine(value):
        return f".. autofunction:: {module}.{name}\n"
    return f".. autodata:: {module}.{name}\n   :no-value:\n"
