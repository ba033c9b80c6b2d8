"""One module for each measurement. ``load`` imports, and so registers, all of them."""

from __future__ import annotations

import importlib
import pkgutil


def load() -> None:
    """Import every module of this package."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
