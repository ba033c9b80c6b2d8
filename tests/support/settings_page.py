"""Write the table of ``docs/settings.md``: ``python -m tests.support.settings_page``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from pathlib import Path

from celery_delayq.settings import Settings

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"

_TABLE = re.compile(r"(<!-- settings -->\n).*?(<!-- end of settings -->)", re.DOTALL)
#: A field of the class below its comment.
_FIELD = re.compile(r"((?:^    #: .*\n)+)    (\w+): ", re.MULTILINE)


def with_table(text: str) -> str:
    """Return the page with the settings of the code."""
    table = "".join(_rows())
    return _TABLE.sub(lambda match: match[1] + table + match[2], text)


def _rows() -> Iterator[str]:
    """Yield the lines of the table."""
    comments = {name: text for text, name in _FIELD.findall(inspect.getsource(Settings))}
    yield "| name | default | range | broker | |\n| --- | --- | --- | --- | --- |\n"
    for each in fields(Settings):
        text = " ".join(re.sub(r"^    #: ", "", comments[each.name], flags=re.M).split())
        text = re.sub(r"^(RabbitMQ|Redis Cluster): (\w)", lambda m: m[2].upper(), text)
        text = text.replace("``", "`")
        broker = {"redis": "Redis", "amqp": "RabbitMQ"}.get(each.metadata.get("broker", ""), "both")
        yield f"| `{each.name}` | {_default(each)} | {_range(each)} | {broker} | {text} |\n"


def _default(field: Field[object]) -> str:
    """Return the default of a setting."""
    if field.default is MISSING:
        return "`{}`"
    if field.default == "":
        return "none"
    if isinstance(field.default, (int, float)) and not isinstance(field.default, bool):
        return f"{field.default:,g}" if field.default < 1e6 else f"{field.default:,.0f}"
    return f"`{field.default}`"


def _range(field: Field[object]) -> str:
    """Return the range of a number; other settings have none."""
    bounds = field.metadata
    if "low" not in bounds:
        return ""
    return " to ".join(f"{bounds[end]:,.10g}" for end in ("low", "high"))


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text("utf-8")), "utf-8")
