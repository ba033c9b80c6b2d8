"""The example uses public names only, as an app has to."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

from tests.support import api_page

EXAMPLE = Path(__file__).parents[3] / "example_project"

#: Public by their ``__all__``; docs/api.md refers to them.
JOBS = [f"celery_delayq.spark.{name}" for name in ("archive", "reconcile", "report", "restore")]


def test_the_example_imports_public_names_only() -> None:
    public = {
        f"{module}.{name}"
        for module in api_page.MODULES
        for name, _ in api_page.names_of(import_module(module))
    }
    public |= {*JOBS, *(f"{job}.{name}" for job in JOBS for name in import_module(job).__all__)}

    imported = {
        f"{node.module}.{each.name}"
        for file in EXAMPLE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("celery_delayq")
        for each in node.names
    }

    assert imported > {"celery_delayq.DelayQ"}
    assert imported - public == set()
