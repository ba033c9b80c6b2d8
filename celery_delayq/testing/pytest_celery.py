"""Pytest plugin: suites written for pytest-celery run on processes, without Docker.

List the plugin in the top ``conftest.py``, or give it on the command line. Without the plugin the
same suite runs on Docker:

    pytest_plugins = ["celery_delayq.testing.pytest_celery"]

    pytest -p celery_delayq.testing.pytest_celery

The plugin replaces pytest-celery's containers ``default_redis_broker``,
``default_rabbitmq_broker``, ``default_redis_backend`` and ``default_worker_container``. A suite may
still override other fixtures: ``default_worker_tasks``, ``default_worker_app``,
``default_worker_container_cls`` (its class methods), ``default_redis_broker_command``, clusters,
setup. A suite that makes its own containers (``container(…)`` of pytest-docker-tools) still needs
Docker for them.

The broker is Redis, unless a suite names ``celery_rabbitmq_broker``. The fixtures
``delayq_broker_scheme`` and ``delayq_rabbitmq_scheme`` return the schemes of the URLs.
"""

from __future__ import annotations

import pytest

_NAME = "celery-delayq-process-nodes"
_PYTEST_CELERY = "celery"


def pytest_configure(config: pytest.Config) -> None:
    """Register the fixtures.

    Fixtures of the last registered plugin take precedence. A plugin of ``-p`` is registered before
    installed plugins such as pytest-celery, so the fixtures are registered here, after all plugins.
    """
    manager = config.pluginmanager
    if manager.has_plugin(_NAME):
        return
    from celery_delayq.testing import node_fixtures

    if not manager.has_plugin(_PYTEST_CELERY):
        # A project may switch pytest-celery off (-p no:celery) for its other suites.
        from pytest_celery import plugin

        manager.register(plugin, f"{_NAME}-{_PYTEST_CELERY}")
    manager.register(node_fixtures, _NAME)
