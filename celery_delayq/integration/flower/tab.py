"""The tab "Delayed" of Flower: where its pages are, for Flower to import when it starts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cached_property
from typing import Any

from kombu.utils.imports import symbol_by_name

from celery_delayq.integration.replace import Insert, Promise, Register, Replace

logger = logging.getLogger(__name__)

#: Patterns of paths, with the names of their handlers. The paths of Flower's own stay known by
#: their names. Flower accepts two members here, and adds its prefix to the pattern.
HANDLERS = (
    (r"/delayed(?:/(.*))?", "celery_delayq.web.flower_handlers.DelayedHandler"),
    (r"/task/(.+)", "celery_delayq.web.flower_handlers.TaskHandler"),
    (r"/broker", "celery_delayq.web.flower_handlers.BrokerHandler"),
)


class FlowerTemplates:
    """Flower's templates with a link to the tab, and the templates of our pages.

    Celery's command line imports Flower in every process, so the loader is imported at its first
    use. Has the interface of a loader of Tornado.
    """

    @cached_property
    def _loader(self) -> Any:
        return symbol_by_name("celery_delayq.web.loader:flower_loader")()

    def load(self, name: str, parent_path: str | None = None) -> Any:
        """Return a template by its name."""
        return self._loader.load(name, parent_path)

    def reset(self) -> None:
        """Read all templates again."""
        self._loader.reset()


TEMPLATES = FlowerTemplates()


def reason_without_tab(flower: Any) -> str:
    """Return why a Flower has no tab; ``""`` if it has the tab."""
    if getattr(flower.capp, "_delayq", None) is None:
        return (
            "its app has no DelayQ(app). Call DelayQ(app) in the module of the app, and start "
            "Flower with it: celery -A <module> flower"
        )
    if flower.settings.get("template_loader") is not TEMPLATES:
        return (
            "DelayQ(app) was called after Flower had made its pages. Call it in the module that -A "
            "names, and not in a module of tasks"
        )
    return ""


def log_missing_tab(_owner: Any, stock: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``Flower.start``."""

    def start(flower: Any) -> Any:
        if reason := reason_without_tab(flower):
            logger.warning("Flower has no tab for delayed tasks: %s", reason)
        return stock(flower)

    return start


TAB = (
    Insert(
        target="flower_urls.handlers",
        items=HANDLERS,
        without="Flower has no pages of delayed tasks, `/task/ID` of a waiting task is not found, "
        "and its page of the broker counts ready tasks only, and nothing on a Redis Cluster.",
        promise=Promise.REMOTE_CONTROL,
        upstream="flower: load handlers of the entry points `flower.handlers`.",
    ),
    Register(
        target="flower_urls.settings",
        keys=("template_loader",),
        value=TEMPLATES,
        without="Flower's pages have no link to those of delayed tasks.",
        promise=Promise.REMOTE_CONTROL,
        upstream="flower: load links of the entry points `flower.handlers`.",
    ),
)

MISSING_TAB = Replace(
    target="flower_app.Flower.start",
    by=log_missing_tab,
    without="Nobody learns why Flower has no pages of delayed tasks.",
    promise=Promise.WARNINGS,
)
