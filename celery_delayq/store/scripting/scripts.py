"""Loads the Lua files: inserts includes, and replaces the names of KEYS and ARGV by numbers."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from celery_delayq.store.scripting.headers import INCLUDE, Header

_LUA_FOLDER = files("celery_delayq").joinpath("store", "lua")
#: A text in quotes, which may contain two dashes, or a comment.
_TEXT_OR_COMMENT = re.compile(r"('(?:\\.|[^'\\])*')|--.*")
_FUNCTION = re.compile(r"local function (\w+)\(")
_NAME, _NAMED = re.compile(r"\w+"), re.compile(r"\b(?:KEYS|ARGV|FIRST)\.\w+")
#: A line that gives keys other names, and a text in quotes or a name.
_KEY_NAMES = re.compile(r"local ([A-Z_, ]+) = (KEYS\.\w+(?:, KEYS\.\w+)*)$")
_TEXT_OR_NAME = re.compile(r"'(?:\\.|[^'\\])*'|\b[A-Z_]+\b")
#: The first line of a part that only one variant of a script has, or that it lacks, and the last.
_PART_BEGINS, _PART_ENDS = re.compile(r"\s*-- @(with|without) (\w+)$"), re.compile(r"\s*-- @end$")
#: Variants of scripts. A variant has the parts between ``-- @with NAME`` and ``-- @end``, and lacks
#: those that begin with ``-- @without NAME``. Its name is that of the script, ``+`` and its own. A
#: script may have several.
LIMITS = "+limits"
#: The variant of every script whose clock a test moves: see
#: :mod:`celery_delayq.store.scripting.clock`.
TRAVEL = "+travel"
#: SHA1 and line number of a script in an error reply. Redis counts the lines of the sent source.
_FAILED = re.compile(r"(?:script: |f_)([0-9a-f]{40}).*?@user_script: ?(\d+)", re.DOTALL)


class _Line(NamedTuple):
    text: str
    #: File and line, such as ``include/types.lua:12``.
    place: str


class Script:
    """One Lua file: its header, the source for Redis, and the SHA1 of that source.

    The source contains the includes. It contains no comments except the first line, no blank lines,
    and no function that the script does not call. Other names of keys, such as ``DUE`` for
    ``KEYS.due``, are replaced, since a function takes long to get a local variable of the script.

    Parameters
    ----------
    name : str
        The file's path below ``store/lua`` without ``.lua``, such as ``dispatch/promote``, and
        perhaps variants, such as ``leases/acquire+limits``.

    Raises
    ------
    ValueError
        The script reads a name that its header lacks.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        path, *variants = name.split("+")
        self.header = Header.of(path, _read(path))
        self._numbers = self.header.numbers()
        self._lines = _without_unused(_with_keys(_lines_of(path, tuple(variants))))
        texts = [_NAMED.sub(self._number, line.text.strip()) for line in self._lines]
        self.source = "\n".join([f"-- {name}.lua: {self.header.summary}", *texts])
        self.sha = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()

    def place_of(self, number: str) -> str:
        """Return file and line of a source line by its number; ``""`` if there is no such line."""
        return {str(n): line.place for n, line in enumerate(self._lines, 2)}.get(number, "")

    def _number(self, name: re.Match[str]) -> str:
        if name[0] not in self._numbers:
            raise ValueError(f"{self.name}.lua reads {name[0]}, which its header does not name")
        return self._numbers[name[0]]


_BY_SHA: dict[str, Script] = {}
_has_test_clock = False


def load(name: str) -> Script:
    """Return the script *name*. Each process reads a script once."""
    return _load(name + TRAVEL if _has_test_clock else name)


def load_for_due_tasks() -> None:
    """Read the scripts that every due task needs: the first task need not wait for that."""
    for name in ("dispatch/next_queue", "dispatch/promote", "leases/acquire", "leases/ack"):
        load(name)


def load_variants_of_travel(*, on: bool) -> None:
    """Have :func:`load` return the variants that read a clock that a test has set."""
    global _has_test_clock
    _has_test_clock = on


def has_test_clock() -> bool:
    """Return whether scripts read a clock that a test has set."""
    return _has_test_clock


@cache
def _load(name: str) -> Script:
    script = Script(name)
    _BY_SHA[script.sha] = script
    return script


def names() -> list[str]:
    """Return the names of all scripts, without variants."""
    rooms = (room for room in _LUA_FOLDER.iterdir() if room.is_dir() and room.name != "include")
    return sorted(
        f"{room.name}/{entry.name.removesuffix('.lua')}"
        for room in rooms
        for entry in room.iterdir()
        if entry.name.endswith(".lua")
    )


def names_with_variants() -> list[str]:
    """Return the names of all scripts and of their variants for limits."""
    return sorted(names() + [name + LIMITS for name in names() if _has_limits(name)])


def _has_limits(path: str) -> bool:
    text = _read(path)
    includes = INCLUDE.findall(text)
    return "-- @with limits" in text or any(_has_limits(f"include/{each}") for each in includes)


def with_place(text: str) -> str:
    """Return an error reply. If one of our scripts has failed, add its name, file and line."""
    failed = _FAILED.search(text)
    script = _BY_SHA.get(failed[1]) if failed else None
    return f"{text} ({script.name}: {script.place_of(failed[2])})" if failed and script else text


def _read(path: str) -> str:
    return _LUA_FOLDER.joinpath(f"{path}.lua").read_text("utf-8")


@cache
def _lines_of(path: str, variants: tuple[str, ...]) -> list[_Line]:
    """Return the lines of code of a file and its includes, without comments."""
    lines: list[_Line] = []
    is_part = True
    for number, text in enumerate(_read(path).split("\n"), 1):
        if part := _PART_BEGINS.match(text):
            is_part = (part[1] == "with") == (part[2] in variants)
        elif _PART_ENDS.match(text):
            is_part = True
        elif not is_part:
            continue
        elif include := INCLUDE.match(text):
            lines += _lines_of(f"include/{include[1]}", variants)
        elif code := _TEXT_OR_COMMENT.sub(r"\1", text).rstrip():
            lines.append(_Line(code, f"{path}.lua:{number}"))
    return lines


def _with_keys(lines: Iterable[_Line]) -> Iterator[_Line]:
    """Replace other names of keys; yield the lines without those that give the names."""
    keys: dict[str, str] = {}
    for line in lines:
        if named := _KEY_NAMES.match(line.text):
            keys.update(zip(named[1].split(", "), named[2].split(", "), strict=True))
        else:
            text = _TEXT_OR_NAME.sub(lambda found: keys.get(found[0], found[0]), line.text)
            yield line._replace(text=text)


def _without_unused(lines: Iterable[_Line]) -> list[_Line]:
    """Return a script without unused functions: Lua creates all functions in each call."""
    parts = list(_functions(lines))
    called = {name: _names(part) for name, part in parts}
    used = {""}
    new = set().union(*(_names(part) for name, part in parts if not name))
    while new := new - used:
        used |= new
        new = set().union(*(called.get(name, ()) for name in new))
    return [line for name, part in parts if name in used for line in part]


def _functions(lines: Iterable[_Line]) -> Iterator[tuple[str, list[_Line]]]:
    """Yield name and lines of each function, and ``""`` with each line outside of functions."""
    name, part = "", list[_Line]()
    for line in lines:
        part.append(line)
        if begins := _FUNCTION.match(line.text):
            name = begins[1]
        if not name or line.text == "end":
            yield name, part
            name, part = "", []


def _names(lines: Iterable[_Line]) -> set[str]:
    return {name for line in lines for name in _NAME.findall(_NAMED.sub("", line.text))}
