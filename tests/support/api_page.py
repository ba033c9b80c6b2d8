"""Write ``docs/api.md``, the list of public names: ``python -m tests.support.api_page``."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cached_property
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

from celery import Task

PAGE = Path(__file__).parents[2] / "docs" / "api.md"

#: The public modules, each with its public names. A module without names has the names of its
#: ``__all__``, else its classes.
MODULES: Mapping[str, tuple[str, ...]] = {
    "celery_delayq": (),
    "celery_delayq.aio": (),
    "celery_delayq.schedules": (),
    "celery_delayq.webhook": (),
    "celery_delayq.errors": (),
    "celery_delayq.embedded": (),
    "celery_delayq.testing": (),
    "celery_delayq.testing.travel.traveller": ("TimeTravel",),
    "celery_delayq.spark": (),
    "celery_delayq.spark.session": ("interrupts",),
    "celery_delayq.spark.write.writer": ("write",),
    "celery_delayq.admin.accounts": ("rules",),
    "celery_delayq.model.context": ("context", "current_context"),
}

#: Members of public classes that only the package itself uses.
INTERNAL = {
    "DeadFilter.by_place",
    "DeadFilter.is_by_place",
    "DeadFilter.matches_names",
    "DeadFilter.range_ms",
    "DeadFilter.without_arg",
    "DeadLetter.dead_lettered",
    "DeadLetter.of",
    "DeadLetter.own",
    "DeadLetter.was_unbound",
    "DeadLetters.pages",
    "DelayQ.store",
    "Filter.conditions",
    "Filter.where",
    "Filter.without_arg",
    "Imported.expect",
    "Imported.refuse",
    "Paused.of",
    "Periodic.next_look_ms",
    "Periodic.pack",
    "Periodic.state",
    "Periodic.unpack",
    "RetryPolicy.as_property",
    "RetryPolicy.with_property",
    "Run.of",
    "ScheduledTask.of_place",
    "ScheduledTask.of_record",
    "ScheduledTask.own",
    "Webhook.hosts",
    "Webhook.networks",
}

HEAD = """# Public API

Only the names on this page are public. All others may change in every release. The page is made
from the code by `python -m tests.support.api_page`, and a test compares both.

These are public too, and explained elsewhere:

| name | page |
| --- | --- |
| `celery_delayq.transport:Transport`, for `broker_transport` | [settings](settings.md) |
| pytest plugins `celery_delayq.testing.fixtures` and `celery_delayq.testing.pytest_celery` | \
[testing](testing.md) |
| the names in `__all__` of `celery_delayq.spark.reconcile`, `celery_delayq.spark.report`, \
`celery_delayq.spark.archive` and `celery_delayq.spark.restore` | [Spark](spark.md) |
| the task names `celery_delayq.webhook` and `celery_delayq.webhook.post` | [webhooks](webhook.md) |

In a signature, arguments after `*` are given by name. `…` is a default that has no short form. A
member without a name is a call of the object itself.
"""

_PROPERTIES = (property, cached_property)
_SECTION = re.compile(r"^(Parameters|Attributes)\n-+\n(.*?)(?=^\w+\n-+$|\Z)", re.M | re.S)
_ROLE = re.compile(r":\w+:`~?([^`]+)`")


def page() -> str:
    """Return the page for the current code."""
    parts = [HEAD]
    for name in MODULES:
        module = import_module(name)
        parts.append(f"## `{name}`\n\n{_summary(module)}\n")
        parts.append("| name | what it is |\n| --- | --- |")
        parts += [_row(public, value) for public, value in names_of(module)]
        parts.append("")
        for public, value in names_of(module):
            if inspect.isclass(value):
                parts += _class_part(public, value)
    return "\n".join(parts).rstrip("\n") + "\n"


def names_of(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield the public names of a module, sorted, each with its value."""
    public = MODULES[module.__name__] or getattr(module, "__all__", None) or _classes_of(module)
    for name in sorted(public):
        yield name, getattr(module, name)


def _classes_of(module: Any) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__ and name[0] != "_"
    ]


def _class_part(name: str, owner: type) -> list[str]:
    """Return a class's part of the page: its arguments or attributes, then its other members."""
    is_argument, described = _described(owner)
    fields = [f"| {', '.join(f'`{each}`' for each in key)} | {text} |" for key, text in described]
    members = [_row(member, value) for member, value in members_of(owner)]
    if not fields and not members:
        return []
    part = [f"### `{name}`", ""]
    if is_argument:
        part += [f"`{name}{_signature(owner)}`", "", "| argument | |", "| --- | --- |", *fields, ""]
        fields = []
    if fields or members:
        part += ["| member | what it is or does |", "| --- | --- |", *fields, *members, ""]
    return part


def _described(owner: type) -> tuple[bool, list[tuple[list[str], str]]]:
    """Return whether a class's docstring has arguments, and its descriptions by name.

    Raises
    ------
    LookupError
        A public field has no description.
    """
    sections = dict(_SECTION.findall(inspect.getdoc(owner) or ""))
    found = []
    for section in sections.values():
        for head, text in re.findall(r"^(\S.*)\n((?: .*\n?|\n)+)", section, re.M):
            found.append((head.partition(" : ")[0].split(", "), _markdown(text)))
    texts = _attribute_docstrings(owner)
    found += [([name], _markdown(text)) for name, text in texts.items()]
    found = [(names, text) for names, text in found if _is_public(owner, names[0])]

    known = {name for names, _ in found for name in names}
    own = [field.name for field in fields(owner)] if is_dataclass(owner) else []
    own += getattr(owner, "_fields", ())
    if missing := [name for name in own if _is_public(owner, name) and name not in known]:
        raise LookupError(f"{owner.__qualname__}: no description of {', '.join(missing)}")
    return bool(texts) or "Parameters" in sections, found


def _attribute_docstrings(owner: type) -> dict[str, str]:
    """Return the docstrings below the fields of a dataclass."""
    if not is_dataclass(owner):
        return {}
    body = ast.parse(inspect.getsource(owner)).body[0].body  # type: ignore[attr-defined]
    return {
        field.target.id: str(text.value.value)
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }


def _is_public(owner: type, name: str) -> bool:
    return name[0] != "_" and f"{owner.__name__}.{name}" not in INTERNAL


def members_of(owner: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties that our own classes define."""
    if issubclass(owner, (BaseException, str, int)):
        return
    for name in sorted(dir(owner)):
        value = inspect.getattr_static(owner, name)
        function = getattr(value, "fget", None) or getattr(value, "func", None)
        function = function or getattr(value, "__func__", value)
        ours = (getattr(function, "__module__", None) or "").startswith("celery_delayq")
        is_call = name == "__call__"
        if (is_call or _is_public(owner, name)) and ours and callable(function):
            shown = "" if is_call else name
            yield shown, value if isinstance(value, _PROPERTIES) else function


def _row(name: str, value: Any) -> str:
    is_call = isinstance(value, Task) or inspect.isroutine(value)
    is_call = is_call and not isinstance(value, _PROPERTIES)
    return f"| `{name}{_signature(value) if is_call else ''}` | {_summary(value)} |"


def _signature(value: Any) -> str:
    signature = inspect.signature(value.run if isinstance(value, Task) else value)
    plain = [
        each.replace(
            annotation=each.empty,
            default=each.empty if each.default is each.empty else _Default(each.default),
        )
        for each in signature.parameters.values()
        if each.name not in ("self", "cls", "session")
    ]
    return str(inspect.Signature(plain))


class _Default:
    """A default in the form of a signature."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __repr__(self) -> str:
        value = self._value
        if isinstance(value, tuple) and value and all(inspect.isclass(each) for each in value):
            return f"({', '.join(each.__name__ for each in value)},)"
        short = value is None or isinstance(value, (bool, int, float, str)) or value in ((), {})
        return repr(value) if short and value != sys.executable else "…"


def _summary(value: Any) -> str:
    """Return the first paragraph of a docstring in one line, or a constant's value."""
    if isinstance(value, Task):
        value = value.run
    described = (inspect.isroutine, inspect.isclass, inspect.ismodule)
    if not isinstance(value, _PROPERTIES) and not any(each(value) for each in described):
        return f"`{value!r}`"
    return _markdown((inspect.getdoc(value) or "").partition("\n\n")[0])


def _markdown(text: str) -> str:
    """Return a docstring's text as one line of a table: roles and literals become plain code."""
    text = _ROLE.sub(lambda found: f"`{found[1].rpartition('.')[2]}`", text.replace("``", "`"))
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
