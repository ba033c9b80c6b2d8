"""One module for each measurement; all of them are imported, and so registered, by ``load``."""

from __future__ import annotations

import importlib
import pkgutil


def load() -> None:
    """Import every module of this package."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
