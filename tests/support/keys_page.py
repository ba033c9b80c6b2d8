"""Write the tables of keys into ``docs/keys.md``: ``python -m tests.support.keys_page``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from celery_delayq.store import keys

PAGE = Path(__file__).parents[2] / "docs" / "keys.md"

_TABLES = re.compile(r"(<!-- keys -->\n).*?(<!-- end of keys -->)", re.DOTALL)
_GROUP = re.compile(r" *# -- (?P<title>.+)")
_COMMENT = re.compile(r" *#: (?P<text>.+)")
#: A field, an attribute with a part of its name in braces, and a method for a key with a part.
_FIELD = re.compile(r"    (?P<name>\w+): str")
_ATTRIBUTE = re.compile(r' *self\.\w+ = f"\{own\}(?P<name>\w+)(?P<part>:\{database\})?"')
_METHOD = re.compile(r"    def (?P<name>\w+)\(self, (?P<part>\w+): str\) -> (?:str|bytes):")
_DOCSTRING = re.compile(r' *"""(?P<text>[A-Z][a-z ]+(?:, scores 0)?: .+?)(?:""")?')


class Key(NamedTuple):
    """A key of the page."""

    name: str
    type: str
    content: str


def with_table(text: str) -> str:
    """Return the page with the keys of the code."""
    tables = "\n".join(_tables())
    return _TABLES.sub(lambda match: f"{match[1]}\n{tables}\n{match[2]}", text)


def groups() -> dict[str, list[Key]]:
    """Return the keys by the headings above them in ``store/keys.py``."""
    found: dict[str, list[Key]] = {}
    prefix, title, comment = "{q}:", "", ""
    method: re.Match[str] | None = None
    for line in Path(keys.__file__).read_text("utf-8").splitlines():
        if line.startswith("class Keys"):
            prefix = "delayq:"
        if group := _GROUP.fullmatch(line):
            title = group["title"]
        elif text := _COMMENT.fullmatch(line):
            comment = f"{comment} {text['text']}".strip()
        elif comment and (field := _FIELD.fullmatch(line)):
            found.setdefault(title, []).append(_key(prefix + field["name"], comment))
            comment = ""
        elif comment and (attribute := _ATTRIBUTE.fullmatch(line)):
            part = ":<db>" if attribute["part"] else ""
            found.setdefault(title, []).append(_key(prefix + attribute["name"] + part, comment))
            comment = ""
        elif method and (text := _DOCSTRING.fullmatch(line)):
            part = method["part"].replace("_", " ")
            name = f"{prefix}{method['name']}:<{part}>"
            found.setdefault(title, []).append(_key(name, text["text"]))
        else:
            comment = ""
        method = _METHOD.fullmatch(line)
    return found


def _key(name: str, text: str) -> Key:
    kind, _, content = text.partition(": ")
    content = re.sub(r" \(:class:`\w+`\)", "", content).removesuffix(".").replace("``", "`")
    return Key(name, kind[0].lower() + kind[1:], content)


def _tables() -> Iterator[str]:
    for title, found in groups().items():
        yield f"## {title}\n\n| key | type | content |\n| --- | --- | --- |"
        yield "".join(f"| `{key.name}` | {key.type} | {key.content} |\n" for key in found)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text("utf-8")), "utf-8")
