"""The fixtures of `celery_delayq.testing.pytest_celery`, with the names of pytest-celery."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from pytest_celery import CELERY_REDIS_BACKEND, CELERY_REDIS_BROKER

from celery_delayq.testing import process_utils
from celery_delayq.testing.fixtures import delayq_broker_scheme, delayq_rabbitmq_scheme
from celery_delayq.testing.server_nodes import RabbitMQProcessContainer, RedisProcessContainer
from celery_delayq.testing.servers import SERVER_VARIABLE
from celery_delayq.testing.worker_node import WorkerProcessContainer

__all__ = [
    "celery_backend",
    "celery_broker",
    "default_rabbitmq_broker",
    "default_redis_backend",
    "default_redis_broker",
    "default_worker_container",
    "default_worker_utils_module",
    "delayq_broker_scheme",
    "delayq_rabbitmq_scheme",
]


@pytest.fixture(params=[CELERY_REDIS_BROKER])
def celery_broker(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The broker of suites that name no broker: Redis."""
    broker = request.getfixturevalue(request.param)
    yield broker
    broker.teardown()


@pytest.fixture(params=[CELERY_REDIS_BACKEND])
def celery_backend(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The backend of suites that name no backend: Redis."""
    backend = request.getfixturevalue(request.param)
    yield backend
    backend.teardown()


@pytest.fixture
def default_redis_broker(
    default_redis_broker_command: list[str],
    default_redis_broker_env: dict[str, str],
    delayq_broker_scheme: str,
) -> Iterator[RedisProcessContainer]:
    """A private Redis for the broker."""
    yield from _redis(delayq_broker_scheme, default_redis_broker_command, default_redis_broker_env)


@pytest.fixture
def default_rabbitmq_broker(
    default_rabbitmq_broker_env: dict[str, str], delayq_rabbitmq_scheme: str
) -> Iterator[RabbitMQProcessContainer]:
    """A private RabbitMQ for the broker."""
    container = RabbitMQProcessContainer(
        scheme=delayq_rabbitmq_scheme, env=default_rabbitmq_broker_env
    )
    yield container
    container.remove()


@pytest.fixture
def default_redis_backend(
    default_redis_backend_command: list[str], default_redis_backend_env: dict[str, str]
) -> Iterator[RedisProcessContainer]:
    """A private Redis for results."""
    yield from _redis("redis", default_redis_backend_command, default_redis_backend_env)


def _redis(scheme: str, command: list[str], env: dict[str, str]) -> Iterator[RedisProcessContainer]:
    executable = os.environ.get(SERVER_VARIABLE) or None
    container = RedisProcessContainer(
        scheme=scheme, command=command, env=env, executable=executable
    )
    yield container
    container.remove()


@pytest.fixture
def default_worker_utils_module() -> ModuleType:
    """The module that lists the processes of the worker."""
    return process_utils


@pytest.fixture
def default_worker_container(
    default_worker_container_cls: type[Any],
    default_worker_command: list[str],
    default_worker_env: dict[str, str],
    default_worker_initial_content: dict[str, bytes],
) -> Iterator[WorkerProcessContainer]:
    """A real worker that is ready."""
    container = WorkerProcessContainer(
        container_cls=default_worker_container_cls,
        command=default_worker_command,
        env=default_worker_env,
        content=default_worker_initial_content,
    )
    try:
        container.ready()
        yield container
    finally:
        container.remove()
