"""The link to our pages in Flower's navigation. No I/O."""

from __future__ import annotations

import logging
import re

logger = logging.getLogger(__name__)

#: The item of Flower's navigation with the link to the broker. Versions differ in the rest.
_BROKER_ITEM = re.compile(
    r"<li\b(?:(?!</li>).)*\{\{\s*reverse_url\('broker'\)\s*\}\}(?:(?!</li>).)*</li>", re.DOTALL
)


def with_link(navbar: str) -> str:
    """Return Flower's navigation with a link to our pages behind that to the broker."""
    found = _BROKER_ITEM.search(navbar)
    if found is None:
        logger.warning(
            "This Flower's navigation has no link to the broker, so it gets none to ours"
        )
        return navbar
    item = re.sub(
        r"\{\{\s*reverse_url\('broker'\)\s*\}\}", "{{ reverse_url('main') }}delayed", found[0]
    )
    item = item.replace("'broker'", "'delayed'").replace(">Broker<", ">Delayed<")
    return f"{navbar[: found.end()]}\n        {item}{navbar[found.end() :]}"
