"""Workers of ``tests.apps.context_tasks``, and the context that tasks recorded."""

from __future__ import annotations

from typing import Any

from celery import Celery

from celery_delayq.testing import wait_until
from tests.support import TIMEOUT
from tests.support.scene import AppScene

ADA = {"user": "ada", "roles": ["reader", {"of": "Zürich\n"}], "n": 12345678901234567890}


def with_context_tasks(app: Celery) -> Celery:
    """Give an app tasks that only its workers define."""

    def stands_for(*_: Any, **__: Any) -> None:
        pass

    for name in ("look", "replacing", "meeting"):
        app.task(name=name, bind=name in ("look", "replacing"), shared=False)(stands_for)
    return app


class ContextScene(AppScene):
    """Starts workers whose tasks record the context values around them."""

    module, pool = "context_tasks", "threads"

    def wait(self, count: int, key: str = "log") -> list[dict[str, Any]]:
        """Wait until *count* records exist, and return them."""
        wait_until(
            lambda: self.client.llen(key) >= count, TIMEOUT, lambda: f"{count}: {self.read(key)}"
        )
        return self.read(key)

    def contexts(self, count: int) -> dict[str, Any]:
        """Wait for *count* runs, and return the context of each."""
        return {run["name"]: run["context"] for run in self.wait(count)}
