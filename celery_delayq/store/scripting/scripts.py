"""Load the Lua files, and put their includes in."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files

_LUA_FOLDER = files("celery_delayq").joinpath("store", "lua")
_INCLUDE = re.compile(r"^-- @include ([\w/]+)$", re.MULTILINE)
#: A function with the comments before it.
_FUNCTION = re.compile(r"^((?:--.*\n)*local function (\w+)\((?:.*\n)+?end\n)", re.MULTILINE)
_NAME, _COMMENT = re.compile(r"\w+"), re.compile(r"--.*")


class Script:
    """One Lua file: its source with all includes, and the SHA1 of that.

    Parameters
    ----------
    name : str
        The file's path below ``store/lua`` without ``.lua``, such as ``dispatch/promote``.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.source = _read(name)
        self.sha = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()


@cache
def load(name: str) -> Script:
    """Return the script *name*, read once per process."""
    return Script(name)


def names() -> list[str]:
    """Return the names of all scripts."""
    rooms = (room for room in _LUA_FOLDER.iterdir() if room.is_dir() and room.name != "include")
    return sorted(
        f"{room.name}/{entry.name.removesuffix('.lua')}"
        for room in rooms
        for entry in room.iterdir()
        if entry.name.endswith(".lua")
    )


def _read(name: str) -> str:
    def included(match: re.Match[str]) -> str:
        return _LUA_FOLDER.joinpath("include", f"{match[1]}.lua").read_text("utf-8").rstrip()

    return _without_unused(
        _INCLUDE.sub(included, _LUA_FOLDER.joinpath(f"{name}.lua").read_text("utf-8"))
    )


def _without_unused(source: str) -> str:
    """Return a script without the functions that it does not call: Lua makes all in each call."""
    # What is outside of functions, then text and name of a function, and so on.
    outside, *functions = _FUNCTION.split(source)
    texts, names, others = functions[::3], functions[1::3], functions[2::3]
    bodies = dict(zip(names, map(_names, texts), strict=True))
    used: set[str] = set()
    new = set().union(*map(_names, (outside, *others)))
    while new := new - used:
        used |= new
        new = set().union(*(bodies.get(name, ()) for name in new))
    kept = [text if name in used else "" for text, name in zip(texts, names, strict=True)]
    return outside + "".join(map("".join, zip(kept, others, strict=True)))


def _names(source: str) -> set[str]:
    return {*_NAME.findall(_COMMENT.sub("", source))}
