"""Changes to Flower, which runs in a Celery process."""

from __future__ import annotations

import sys

from celery_delayq.integration.flower import api, tab
from celery_delayq.integration.replace import make

#: Made when the URL of the broker is shown, if Flower was imported.
CHANGES = (*api.CHANGES, tab.MISSING_TAB)

#: Made by ``DelayQ(app)``, if Flower was imported.
TAB = tab.TAB


def change_flower() -> None:
    """Change the Flower of this process, if there is one."""
    make(CHANGES, **_modules())


def add_tab() -> None:
    """Add the pages to the Flower of this process, if there is one."""
    make((*TAB, tab.MISSING_TAB), **_modules())


def _modules() -> dict[str, object]:
    names = {"flower_api": "flower.api", "flower_app": "flower.app", "flower_urls": "flower.urls"}
    return {name: sys.modules.get(module) for name, module in names.items()}
