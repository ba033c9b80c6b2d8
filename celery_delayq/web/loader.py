"""Templates: our own, in the frame of Flower or in a frame of their own."""

from __future__ import annotations

import logging
import re
from importlib.resources import files
from pathlib import Path

from tornado.template import BaseLoader, Template

from celery_delayq.web.shown import NAMESPACE

logger = logging.getLogger(__name__)

#: What the names of our templates begin with. All templates are in one folder, as far as templates
#: can tell: one in another folder could not extend that of Flower.
_PREFIX = "delayed-"

#: The item of Flower's navigation with the link to the broker. Versions differ in the rest.
_BROKER_ITEM = re.compile(
    r"<li\b(?:(?!</li>).)*\{\{\s*reverse_url\('broker'\)\s*\}\}(?:(?!</li>).)*</li>", re.DOTALL
)


class PageLoader(BaseLoader):
    """Loads our templates, and all others from a folder.

    Parameters
    ----------
    frame : str
        The name of our template with the frame around pages.
    others : Path | None
        The folder of the other templates; None if there are none.
    """

    def __init__(self, frame: str, others: Path | None = None) -> None:
        super().__init__(namespace=dict(NAMESPACE))
        self._frame, self._others = frame, others

    def resolve_path(self, name: str, parent_path: str | None = None) -> str:  # noqa: ARG002
        """Return the name: no template is in a folder of its own."""
        return name

    def _create_template(self, name: str) -> Template:
        if name.startswith(_PREFIX):
            file = self._frame if name == "delayed-frame.html" else name
            text = files(__package__).joinpath("templates", file).read_text("utf-8")
            return Template(text, name=name, loader=self, autoescape="escaped")
        if self._others is None:
            raise FileNotFoundError(f"no template {name}")
        text = self._others.joinpath(name).read_text("utf-8")
        return Template(with_link(text) if name == "navbar.html" else text, name=name, loader=self)


def flower_loader() -> PageLoader:
    """Return the loader for Flower: its templates, with a link to our pages."""
    from flower.urls import settings

    return PageLoader("delayed-frame-flower.html", Path(settings["template_path"]))


def alone_loader() -> PageLoader:
    """Return the loader for the pages alone."""
    return PageLoader("delayed-frame-alone.html")


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
