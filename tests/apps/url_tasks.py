"""An app whose settings are given by the environment, whatever its broker is."""

from __future__ import annotations

from tests.apps.settings import new_app

app = new_app("url")


@app.task(name="url.add", shared=False)
def add(x: int, y: int) -> int:
    return x + y
