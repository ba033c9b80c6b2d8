"""Each place that turns bytes or texts of a broker into values does it where no error gets out.

A call that can fail is in the safe reader's context, in a ``try`` that catches what it raises, or
in the table of calls that read what this package itself, a server or the caller of the API wrote.
"""

from __future__ import annotations

import ast
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

import pytest

from celery_delayq.errors import RecordError
from celery_delayq.utils import foreign

PROJECT = Path(__file__).parents[3]
PACKAGE = PROJECT / "celery_delayq"
TABLE = Path(__file__).with_name("foreign_bytes.txt")

#: Rooms that read nothing from a broker by themselves.
ELSEWHERE = {"cli", "embedded", "spark", "testing", "webhook"}

#: Functions and methods that fail on a wrong value.
READERS = {
    *("int", "float", "Decimal", "loads", "decode", "encode", "fromtimestamp", "fromisoformat"),
    *("b64decode", "urlsafe_b64decode", "decompress", "unpack_from", "fromhex", "timedelta"),
}

#: Those that raise OverflowError for some numbers: an infinite one, a year above 9999.
OVERFLOWING = {"int", "float", "fromtimestamp", "timedelta"}

#: Ways to encode and decode that fail on nothing.
LENIENT = {"replace", "backslashreplace", "ignore", "surrogateescape", "surrogatepass"}

#: What a ``try`` catches, where it catches enough.
ENOUGH = {"Exception", "BaseException", "FOREIGN_ERRORS", "MALFORMED_ERRORS", "RecordError"}


class Site(NamedTuple):
    """A call that may fail on the writing of others."""

    module: str
    function: str
    call: str

    def __str__(self) -> str:
        return "  ".join(self)


class Finder(ast.NodeVisitor):
    """Finds the calls in a module that no context and no ``try`` keeps from failing."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.found: list[Site] = []
        self._scope: list[str] = []
        self._caught: list[set[str]] = []

    def _visit_scope(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        self._scope.append(node.name)
        before, self._caught = self._caught, []  # a function runs when it is called
        self.generic_visit(node)
        self._scope.pop()
        self._caught = before

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _visit_scope  # noqa: N815

    def visit_Try(self, node: ast.Try) -> None:
        self._caught.append({name for each in node.handlers for name in _names(each.type)})
        for each in node.body:
            self.visit(each)
        self._caught.pop()
        for part in (*node.handlers, *node.orelse, *node.finalbody):
            self.visit(part)

    def visit_With(self, node: ast.With) -> None:
        caught: set[str] = set()
        for item in node.items:
            call = item.context_expr
            if isinstance(call, ast.Call):
                match _name(call.func):
                    case "record_errors":
                        caught.add("RecordError")
                    case "suppress":
                        caught |= {name for each in call.args for name in _names(each)}
        self._caught.append(caught)
        self.generic_visit(node)
        self._caught.pop()

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        name = _name(node.func)
        if name in READERS and not _is_harmless(name, node) and not self._is_caught(name, node):
            call = " ".join(ast.unparse(node).split())
            self.found.append(Site(self.module, ".".join(self._scope), call))

    def _is_caught(self, name: str, node: ast.Call) -> bool:
        caught = set().union(*self._caught)
        enough = {*ENOUGH}
        if name == "loads" and ast.unparse(node.func) == "json.loads":
            return bool(caught & enough) or {"ValueError", "RecursionError"} <= caught
        if name in OVERFLOWING:
            overflow = {"OverflowError", "ArithmeticError"}
            return bool(caught & enough) or ("ValueError" in caught and bool(caught & overflow))
        if name in ("encode", "decode"):
            enough |= {"UnicodeDecodeError", "UnicodeEncodeError", "UnicodeError"}
        return bool(caught & {*enough, "ValueError"})


def _name(func: ast.expr) -> str:
    if isinstance(func, ast.Attribute):
        return func.attr
    return func.id if isinstance(func, ast.Name) else ""


def _names(kinds: ast.expr | None) -> Iterator[str]:
    """Yield the names of the exceptions in an ``except``."""
    if kinds is None:
        yield "BaseException"
    elif isinstance(kinds, (ast.Tuple, ast.List)):
        for each in kinds.elts:
            yield from _names(each)
    elif isinstance(kinds, ast.Starred):
        yield from _names(kinds.value)
    else:
        yield _name(kinds)


def _is_harmless(name: str, node: ast.Call) -> bool:
    """Return whether a call fails on no value, or has a number of ours."""
    constants = {
        each.value
        for each in (*node.args, *(keyword.value for keyword in node.keywords))
        if isinstance(each, ast.Constant)
    }
    if name in ("encode", "decode"):
        return bool(constants & LENIENT)
    if name == "timedelta":
        return len(constants) == len(node.args) + len(node.keywords)
    if name in ("int", "float"):
        # Products, truths and constants; a text cannot be multiplied by a float.
        return all(isinstance(each, (ast.Constant, ast.BinOp, ast.Compare)) for each in node.args)
    return False


def sites() -> list[Site]:
    """Return the calls of the package that nothing keeps from failing."""
    found: list[Site] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        module = str(path.relative_to(PACKAGE))
        if path.relative_to(PACKAGE).parts[0] not in ELSEWHERE:
            finder = Finder(module)
            finder.visit(ast.parse(path.read_text("utf-8")))
            found += finder.found
    return found


def unguarded() -> dict[str, int]:
    """Return how many of these calls each function has."""
    return dict(Counter(f"{site.module}  {site.function}" for site in sites()))


def test_each_call_that_may_fail_is_guarded_or_known() -> None:
    known: dict[str, int] = {}
    for line in TABLE.read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            place, _, number = line.rpartition("  ")
            known[place] = int(number)

    found = unguarded()

    new = {place: number for place, number in found.items() if number > known.get(place, 0)}
    assert not new, f"guard these by utils/foreign.py, or add them to {TABLE.name}: {new}"
    gone = {place: number for place, number in known.items() if number > found.get(place, 0)}
    assert not gone, f"take these out of {TABLE.name}: {gone}"


@pytest.mark.parametrize(
    ("code", "number"),
    [
        ("json.loads(data)", 1),
        ("int(text)", 1),
        ("data.decode()", 1),
        ("data.decode('utf-8', 'replace')", 0),
        ("int(seconds * 1000)", 0),
        ("with record_errors('x'): int(text)", 0),
        ("try: int(number)\nexcept ValueError: pass", 1),
        ("try: int(number)\nexcept (ValueError, OverflowError): pass", 0),
        ("try: timedelta(seconds=number)\nexcept foreign.FOREIGN_ERRORS: pass", 0),
        ("timedelta(seconds=60)", 0),
        ("try: json.loads(data)\nexcept ValueError: pass", 1),
        ("try: foreign.loads(data)\nexcept ValueError: pass", 0),
        ("try: pass\nexcept ValueError: int(text)", 1),
        ("try:\n    def f(): int(text)\nexcept ValueError: pass", 1),
    ],
)
def test_the_finder_knows_what_is_guarded(code: str, number: int) -> None:
    finder = Finder("m.py")
    finder.visit(ast.parse(code))

    assert len(finder.found) == number


@pytest.mark.parametrize(
    "read",
    [
        lambda: foreign.loads("[" * 2000),
        lambda: foreign.loads(b"\xff"),
        lambda: zlib.decompress(b"x"),
        lambda: int(float("inf")),
        lambda: datetime.fromtimestamp(1e20, timezone.utc),
        lambda: "\ud800".encode(),
        lambda: [][0],
    ],
)
def test_whatever_is_wrong_is_one_error(read: Callable[[], object]) -> None:
    with pytest.raises(RecordError), foreign.record_errors("value"):
        read()


def test_what_is_no_fault_of_the_value_stays_as_it_is() -> None:
    with pytest.raises(MemoryError), foreign.record_errors("value"):
        raise MemoryError
