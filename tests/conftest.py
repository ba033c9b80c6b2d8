"""Fixtures for all tiers: a private Redis and real workers, as the package gives them to users."""

from __future__ import annotations

from typing import Any

import pytest

pytest_plugins = ["celery_delayq.testing.fixtures"]

SPARK = "tests/integration/spark/"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let one process run all tests that share a Spark, before all else; others go anywhere."""
    # The mark xdist_group does not do it: pytest 9.2 does not tell it to xdist 3.8.
    from xdist.scheduler import LoadScopeScheduling

    class OneSpark(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return SPARK if nodeid.startswith(SPARK) else nodeid

    return OneSpark(config, log)
