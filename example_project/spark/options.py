"""Options of the demonstration with Spark."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of the command line."""

    day: date
    flights: int | None = None
    seconds: float = 40.0
    workers: int = 2
    html: Path
    summary: Path
    keep: bool = False
