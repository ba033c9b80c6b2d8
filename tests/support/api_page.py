"""Write ``docs/api.md``, the list of public names: ``python -m tests.support.api_page``."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from celery import Task

PAGE = Path(__file__).parents[2] / "docs" / "api.md"

#: The public modules; all others may change in every release.
MODULES = (
    "celery_delayq",
    "celery_delayq.schedules",
    "celery_delayq.webhook",
    "celery_delayq.errors",
    "celery_delayq.embedded",
    "celery_delayq.testing",
    "celery_delayq.spark",
)

HEAD = """# Public API

Only what is listed here is public. Everything else may change in every release. The page is made
from the code by `python -m tests.support.api_page`, and a test compares both.
"""


def page() -> str:
    """Return the page as the code has it now."""
    parts = [HEAD]
    for name in MODULES:
        module = import_module(name)
        parts.append(f"## `{name}`\n\n{_summary(module)}\n")
        parts.append("| name | what it is |\n| --- | --- |")
        parts += [_row(public, value) for public, value in names_of(module)]
        parts.append("")
        for public, value in names_of(module):
            members = [*_members(value)] if inspect.isclass(value) else []
            if members:
                parts.append(f"### `{public}`\n\n| member | what it does |\n| --- | --- |")
                parts += [_row(member, what) for member, what in members]
                parts.append("")
    return "\n".join(parts).rstrip("\n") + "\n"


def names_of(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield the public names of a module, sorted, each with what it stands for."""
    for name in sorted(getattr(module, "__all__", None) or _defined_in(module)):
        yield name, getattr(module, name)


def _defined_in(module: Any) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__ and name[0] != "_"
    ]


def _members(owner: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties that our own classes define."""
    if issubclass(owner, (BaseException, str, int)):
        return
    for name in sorted(dir(owner)):
        value = inspect.getattr_static(owner, name)
        function = getattr(value, "fget", None) or getattr(value, "__func__", value)
        ours = (getattr(function, "__module__", None) or "").startswith("celery_delayq")
        if name[0] != "_" and ours and callable(function):
            yield name, value if isinstance(value, property) else function


def _row(name: str, value: Any) -> str:
    return f"| `{name}{_signature(value)}` | {_summary(value)} |"


def _signature(value: Any) -> str:
    if not inspect.isroutine(value):
        return ""
    parameters = inspect.signature(value).parameters.values()
    names = [
        str(each).split(":")[0].split("=")[0]
        for each in parameters
        if each.name not in ("self", "cls")
    ]
    return f"({', '.join(names)})"


def _summary(value: Any) -> str:
    """Return the first paragraph of a docstring in one line; a constant's value."""
    if isinstance(value, Task):
        value = value.run
    described = (inspect.isroutine, inspect.isclass, inspect.ismodule)
    if not isinstance(value, property) and not any(each(value) for each in described):
        return f"`{value!r}`"
    text = inspect.getdoc(value) or ""
    return " ".join(text.partition("\n\n")[0].split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
