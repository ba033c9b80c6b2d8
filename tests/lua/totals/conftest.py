"""Fixtures of the tests of counters."""

from __future__ import annotations

import pytest

from tests.lua.bench import Bench, repeating
from tests.lua.totals.counting import Counting


@pytest.fixture
def new(store: Bench) -> Counting:
    """The counts since the last call."""
    return Counting(store)


@pytest.fixture
def twice(store: Bench) -> Bench:
    """A store that makes each call twice."""
    return repeating(store)
