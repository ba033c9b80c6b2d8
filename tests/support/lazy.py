"""An app whose tasks no process has imported, as with ``include=``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pytest
from celery import Celery

TASK, LIMIT = "lazy.task", "lazy"

_MODULE = f"""
from celery_delayq import Limit
from {{shop}} import app


@app.task(
    name={TASK!r}, unique_key="{{{{key}}}}", limit=Limit({LIMIT!r}, rate="5/m"), shared=False
)
def task(key, amount=0):
    pass
"""


def lazy_app(
    make_app: Callable[..., Celery], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Celery:
    """Return the app; its task takes ``key`` and ``amount``, and has the unique key ``{key}`` and
    the limit :data:`LIMIT`, ``5/m``.
    """
    name = uuid4().hex
    app = make_app(include=[f"lazy_{name}"])
    monkeypatch.setitem(sys.modules, f"shop_{name}", SimpleNamespace(app=app))
    monkeypatch.syspath_prepend(folder)
    (folder / f"lazy_{name}.py").write_text(_MODULE.format(shop=f"shop_{name}"))
    return app


def is_imported(app: Celery) -> bool:
    """Return whether the module of a lazy app is imported."""
    return {*app.conf.include} <= {*sys.modules}
