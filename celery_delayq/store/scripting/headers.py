"""Reads the header of a Lua file: its first lines. No I/O.

A script names its KEYS and ARGV in order, and the roles of the accounts that run the script::

    -- KEYS     due  entries  ready_lists…
    -- ARGV     queue
    --          most_entries: most entries to move
    -- Roles    worker, dispatcher

The header of an include lists the names that it ``Defines``, and the names of other includes and of
the script that it ``Expects``.

A name with ``…`` means all following KEYS or ARGV. The script reads ``KEYS.due``, ``ARGV.queue``
and, for the number of a name in KEYS or ARGV, ``FIRST.ready_lists``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

#: A line that an include replaces.
INCLUDE = re.compile(r"^-- @include ([\w/]+)$", re.MULTILINE)
_PART = re.compile(r"^-- ([A-Z]\w+) {2,}(.*(?:\n-- {9,}.*)*)", re.MULTILINE)
#: Lines that continue the description of a name.
_MORE = re.compile(r"\n-- {11,}.*")
_MANY = "…"


@dataclass(frozen=True, slots=True)
class Header:
    """The header of one Lua file.

    Parameters
    ----------
    name : str
        The file's path below ``store/lua`` without ``.lua``.
    summary : str
        The file's first line.
    parts : dict[str, str]
        The text after each label, such as ``"Returns"``.
    includes : list[str]
        The includes, in order.
    """

    name: str
    summary: str
    parts: dict[str, str]
    includes: list[str]

    @classmethod
    def of(cls, name: str, text: str) -> Header:
        """Read the header of a file's text."""
        first = text.partition("\n")[0]
        parts, includes = dict(_PART.findall(text)), INCLUDE.findall(text)
        return cls(name, first.removeprefix("-- "), parts, includes)

    @property
    def keys(self) -> list[str]:
        """The names of KEYS; the last one may end with ``…``."""
        return self._names("KEYS")

    @property
    def open_key(self) -> str:
        """The name of the last KEYS that ends with ``…``, without it; "" for none."""
        return next((key.removesuffix(_MANY) for key in self.keys if key.endswith(_MANY)), "")

    @property
    def args(self) -> list[str]:
        """The names of ARGV; the last one may end with ``…``."""
        return self._names("ARGV")

    @property
    def roles(self) -> list[str]:
        """The roles that run the script. The role ``operator`` runs all scripts."""
        return self.parts["Roles"].split(", ")

    def numbers(self) -> dict[str, str]:
        """Return the Lua text for each name, such as ``KEYS[1]`` for ``KEYS.due``.

        Raises
        ------
        ValueError
            The header has a name twice.
        """
        found = dict[str, str]()
        for part, names in (("KEYS", self.keys), ("ARGV", self.args)):
            for number, name in enumerate(names, 1):
                first = f"FIRST.{name.removesuffix(_MANY)}"
                if first in found:
                    raise ValueError(f"{self.name}.lua has the name {name} twice")
                found[first] = str(number)
                if not name.endswith(_MANY):
                    found[f"{part}.{name}"] = f"{part}[{number}]"
        return found

    def _names(self, part: str) -> list[str]:
        lines = _MORE.sub("", self.parts[part]).split("\n")
        names = " ".join(line.removeprefix("--").partition(":")[0] for line in lines).split()
        return [] if names == ["none"] else names
