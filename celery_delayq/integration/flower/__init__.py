"""Changes to Flower, which runs in a Celery process."""

from __future__ import annotations

import sys

from celery_delayq.integration.flower import api, broker
from celery_delayq.integration.replace import make

#: Made when the URL of the broker is shown, if Flower was imported.
CHANGES = (*api.CHANGES, *broker.CHANGES)


def change_flower() -> None:
    """Change the Flower of this process, if there is one."""
    modules = {"flower_api": "flower.api", "flower_broker": "flower.utils.broker"}
    make(CHANGES, **{name: sys.modules.get(module) for name, module in modules.items()})
