"""An app whose task is renamed from ``mail.remind`` to ``mail.notify``."""

from __future__ import annotations

from tests.apps.settings import new_app

app = new_app("notify", renamed={"mail.remind": "mail.notify"})


@app.task(name="mail.notify")
def notify(gate: str, pax: int) -> None:
    """Stand for any task."""
