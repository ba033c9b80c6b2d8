"""Pytest plugin: suites written for pytest-celery run on processes, without Docker.

List it in the top ``conftest.py``, or give it on the command line; without it the same suite runs
on Docker:

    pytest_plugins = ["celery_delayq.testing.pytest_celery"]

    pytest -p celery_delayq.testing.pytest_celery

What is replaced are pytest-celery's containers ``default_redis_broker``,
``default_rabbitmq_broker``, ``default_redis_backend`` and ``default_worker_container``. Everything
that a suite overrides around them holds: ``default_worker_tasks``, ``default_worker_app``,
``default_worker_container_cls`` (its class methods), ``default_redis_broker_command``, clusters,
setup. A suite that makes containers of its own (``container(…)`` of pytest-docker-tools) still
needs Docker for those.

The broker is Redis, for suites that do not name ``celery_rabbitmq_broker``. The schemes of their
URLs are what ``delayq_broker_scheme`` and ``delayq_rabbitmq_scheme`` return.
"""

from __future__ import annotations

import pytest

_NAME = "celery-delayq-process-nodes"
_PYTEST_CELERY = "celery"


def pytest_configure(config: pytest.Config) -> None:
    """Register the fixtures.

    The last registered plugin's fixtures win. A plugin given by ``-p`` comes before installed ones
    such as pytest-celery, so the fixtures wait until all are there.
    """
    manager = config.pluginmanager
    if manager.has_plugin(_NAME):
        return
    from celery_delayq.testing import node_fixtures

    if not manager.has_plugin(_PYTEST_CELERY):
        # A project may have it off (-p no:celery) for all but the suites that list this plugin.
        from pytest_celery import plugin

        manager.register(plugin, f"{_NAME}-{_PYTEST_CELERY}")
    manager.register(node_fixtures, _NAME)
