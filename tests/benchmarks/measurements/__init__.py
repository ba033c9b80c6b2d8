"""One module for each measurement. ``load`` imports, and so registers, all of them.

A module declares its rows as ``Row(name, title, unit, direction, target)``. Its function carries
``@measurement(name, order=…)`` and yields ``ROW.figure(stock_values, our_values)``.
"""

from __future__ import annotations

import importlib
import pkgutil


def load() -> None:
    """Import every module of this package."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
