"""Length of fault tests: short in CI, long in ``python -m tests.soak``."""

from __future__ import annotations

import os
import random
from typing import TypeVar

_T = TypeVar("_T")

LONG_VARIABLE = "DELAYQ_FAULTS_LONG"
SEED_VARIABLE = "DELAYQ_FAULTS_SEED"

LONG = os.environ.get(LONG_VARIABLE) == "1"
SEED = int(os.environ.get(SEED_VARIABLE) or 2013)


def scaled(short: _T, long: _T) -> _T:
    """Return *long* in a soak, else *short*."""
    return long if LONG else short


def seeds(short: int, long: int) -> list[int]:
    """Return seeds to parametrize a test with: *short* in CI, *long* in a soak."""
    return [SEED + n for n in range(scaled(short, long))]


def some(of: list[_T], count: int, name: str) -> list[_T]:
    """Return a whole list in a soak, else *count* items of it, by the seed and *name*."""
    return of if LONG else random.Random(f"{SEED} {name}").sample(of, count)
