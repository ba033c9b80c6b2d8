"""The log lines that the page of troubleshooting names are those of the code, with their levels."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).parents[3]
ROW = re.compile(r"^\| (warning|error|critical) \| `([^`]+)` \|", re.MULTILINE)

#: The levels of logging's methods, and of our functions that log.
LEVELS = {
    **{name: name for name in ("warning", "error", "critical")},
    **{"exception": "error", "warn_once": "warning"},
}

#: Stands for what a line fills in, in the texts of the code and in the lines of the page.
ANY = "\0"

#: What ``Reconnecting`` logs of an outage: its text in the code begins with a name of ``outages=``.
OF_OUTAGES = f"{ANY}, {ANY} waits: {ANY}"


def calls() -> Iterator[tuple[ast.Call, Mapping[str, ast.AST]]]:
    """Yield all calls in the package, each with the constants of its module."""
    for path in (ROOT / "celery_delayq").rglob("*.py"):
        module = ast.parse(path.read_text("utf-8"))
        constants = {
            target.id: each.value
            for each in module.body
            if isinstance(each, ast.Assign)
            for target in each.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(module):
            if isinstance(node, ast.Call):
                yield node, constants


def text_of(node: ast.AST, constants: Mapping[str, ast.AST] = MappingProxyType({})) -> str | None:
    """Return a text of the code, with ANY for what it fills in; None for what is no text."""
    if isinstance(node, ast.Name) and node.id in constants:
        return text_of(constants[node.id])
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"%[a-z]|%\.\d+[a-z]|\{\}", ANY, node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(each) or ANY for each in node.values)
    return None


def logged() -> set[tuple[str, str]]:
    """Return the level and text of each log line of the code."""
    found, outages = set(), set()
    for call, constants in calls():
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        texts = [text for each in call.args if (text := text_of(each, constants)) is not None]
        if name in LEVELS and texts:
            found.add((LEVELS[name], texts[0]))
        for keyword in call.keywords:
            if keyword.arg == "outages" and isinstance(keyword.value, ast.Dict):
                outages |= {text_of(key) for key in keyword.value.keys if key is not None}
    for level, text in [*found]:
        if text == OF_OUTAGES:
            found |= {(level, text.replace(ANY, each, 1)) for each in outages if each}
    return found


def test_each_log_line_of_the_page_is_in_the_code() -> None:
    lines = ROW.findall((ROOT / "docs" / "troubleshooting.md").read_text("utf-8"))
    of_code = logged()

    assert len(lines) > 5
    assert OF_OUTAGES in {text for _, text in of_code}
    assert [line for line in lines if not any(is_line(line, each) for each in of_code)] == []


def test_a_line_of_another_level_or_of_two_texts_is_none_of_the_code() -> None:
    text = f"lease of {ANY} expired: queue={ANY}"

    assert is_line(("warning", "lease of … expired: queue=…"), ("warning", text))
    assert is_line(("warning", "lease of"), ("warning", text))
    assert not is_line(("warning", "expired: queue="), ("warning", text))
    assert not is_line(("error", "lease of … expired: queue=…"), ("warning", text))
    assert not is_line(("warning", "queue=… lease of"), ("warning", text))
    assert not is_line(("warning", "lease of … promoted"), ("warning", text))


def is_line(line: tuple[str, str], of_code: tuple[str, str]) -> bool:
    """Return whether a line of the page, with its level, begins a line of the code."""
    (level, shown), (of_call, text) = line, of_code
    parts = map(re.escape, shown.split("…"))
    return level == of_call and re.match(f"[^{ANY}]*{ANY}[^{ANY}]*".join(parts), text) is not None
