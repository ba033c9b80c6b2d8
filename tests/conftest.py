"""Fixtures for all tiers: a private Redis and real workers, as the package gives them to users."""

pytest_plugins = ["celery_delayq.testing.fixtures"]
