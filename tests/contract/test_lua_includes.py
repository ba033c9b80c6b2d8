"""Each include declares what it defines and expects; each script has the includes that it needs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path

import pytest

from celery_delayq.store.scripting import scripts
from celery_delayq.store.scripting.headers import Header

LUA = Path(str(files("celery_delayq").joinpath("store", "lua")))
INCLUDES = {
    path.relative_to(LUA / "include").with_suffix("").as_posix(): path.read_text("utf-8")
    for path in sorted(LUA.joinpath("include").rglob("*.lua"))
}

#: Words of Lua, and names that Redis gives to each script.
LUA_WORDS = {
    *("and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in"),
    *("local", "nil", "not", "or", "repeat", "return", "then", "true", "until", "while"),
    *("string", "table", "math", "tonumber", "tostring", "type", "unpack", "select", "ipairs"),
    *("pairs", "error", "pcall", "redis", "KEYS", "ARGV", "FIRST"),
}


def code(text: str) -> str:
    """Return Lua source without its comments, and with empty strings."""
    return re.sub(r"('(?:\\.|[^'\\\n])*')|--.*", lambda match: "''" if match[1] else "", text)


def defined(text: str) -> list[str]:
    """Return the names that a file gives to the code behind it."""
    found = list[str]()
    for function, values in re.findall(r"^local (?:function (\w+)|([\w, ]+))", text, re.MULTILINE):
        found += [function] if function else values.strip().split(", ")
    return found


def local_names(text: str) -> set[str]:
    """Return all names that are local to a file or to its functions and loops."""
    functions = re.findall(r"\bfunction ?(\w*)\((.*?)\)", text)
    lists = re.findall(r"\b(?:local|for) (?!function)([\w, ]+)", text)
    lists += [f"{name}, {parameters}" for name, parameters in functions]
    return {name.partition(" ")[0] for names in lists for name in names.split(", ")}


def expected(text: str) -> set[str]:
    """Return the names that a file reads and does not define."""
    without_fields = re.sub(r"([{,]\s*)\w+ = ", r"\1", text)
    read = set(re.findall(r"(?<![\w.:])[A-Za-z_]\w*", without_fields))
    return read - local_names(text) - LUA_WORDS


def of_script(text: str) -> set[str]:
    """Return the names of KEYS and ARGV that a file reads."""
    return set(re.findall(r"\b(?:KEYS|ARGV|FIRST)\.\w+", text))


def declared(include: str) -> dict[str, set[str]]:
    """Return the names that a header expects, by their include; ``""`` is the script."""
    found: dict[str, set[str]] = {}
    owner = ""
    lines = Header.of(include, INCLUDES[include]).parts.get("Expects", "").split("\n")
    for line in lines:
        begins, _, names = line.rpartition(": ")
        owner = begins.removeprefix("--").strip() or owner
        found.setdefault(owner, set()).update(names.removeprefix("--").split())
    return {owner: names for owner, names in found.items() if names}


@pytest.mark.parametrize("include", INCLUDES)
def test_an_include_declares_all_that_it_defines_and_expects(include: str) -> None:
    text = code(INCLUDES[include])
    owners = {name: other for other in INCLUDES for name in defined(code(INCLUDES[other]))}
    needed: dict[str, set[str]] = {"": of_script(text)} if of_script(text) else {}
    for name in expected(text):
        needed.setdefault(owners[name], set()).add(name)

    assert Header.of(include, INCLUDES[include]).parts["Defines"].replace("--", "").split() == (
        defined(text)
    )
    assert declared(include) == needed


# -- which includes a script has


def calls_in(text: str) -> dict[str, set[str]]:
    """Return the names that each function and value of an include reads; values read none."""
    calls: dict[str, set[str]] = {name: set() for name in defined(text)}
    for part in re.split(r"^(?=local function )", text, flags=re.MULTILINE):
        if function := re.match(r"local function (\w+)", part):
            calls[function[1]] = expected(part)
    return calls


def reached(first: Iterable[str], calls: dict[str, set[str]]) -> set[str]:
    """Return all names that *first* reads, directly or through other functions."""
    found: set[str] = set()
    while new := {*first} - found:
        found |= new
        first = [each for one in new for each in calls.get(one, ())]
    return found


ALL_NAMES = {name for text in INCLUDES.values() for name in defined(code(text))}


@pytest.mark.parametrize("name", scripts.names())
def test_every_include_is_needed_and_stands_after_those_that_it_needs(name: str) -> None:
    included = {
        include: calls_in(code(INCLUDES[include])) for include in scripts.load(name).header.includes
    }
    calls = {name: there for functions in included.values() for name, there in functions.items()}
    needed = reached(expected(code((LUA / f"{name}.lua").read_text("utf-8"))), calls) & ALL_NAMES

    known: set[str] = set()
    for include, functions in included.items():
        assert needed & functions.keys(), f"{include} is not needed"
        for function, there in functions.items():
            known.add(function)
            if function in needed:
                assert there & ALL_NAMES <= known, f"{function} calls what comes later"
    assert needed <= known
