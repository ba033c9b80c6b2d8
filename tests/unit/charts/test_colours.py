"""The charts of a picture have the colours of the pages."""

from __future__ import annotations

import re
from pathlib import Path

import celery_delayq.web
from celery_delayq.charts.svg import STYLE


def colours(rule: str, prefix: str) -> dict[str, str]:
    """Return the colours of a rule by their names; of `var(--other, colour)` the second one."""
    found = re.findall(rf"--{prefix}(\w+): (?:var\([^,]+, )?(#\w+)", rule)
    return dict(found)


def test_a_picture_and_the_pages_have_the_same_colours() -> None:
    css = (Path(celery_delayq.web.__file__).parent / "static" / "delayed.css").read_text("utf-8")
    light, dark = (part for part in re.findall(r"\{([^{}]*--card:[^{}]*)\}", STYLE))
    pages = re.findall(r"\{([^{}]*--dq-card:[^{}]*)\}", css)

    for picture, page in zip((light, dark), pages, strict=True):
        its = colours(picture, "")
        assert len(its) == 11
        assert its == {name: colours(page, "dq-").get(name) for name in its}
