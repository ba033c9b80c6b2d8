"""Templates: our own, in the frame of Flower or in a frame of their own."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from tornado.template import BaseLoader, Template

from celery_delayq.web.formatting import NAMESPACE
from celery_delayq.web.navbar import with_link

#: What the names of our templates begin with. All templates are in one folder, as far as templates
#: can tell: one in another folder could not extend that of Flower.
_PREFIX = "delayed-"


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
