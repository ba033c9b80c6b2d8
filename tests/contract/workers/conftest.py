"""Fixtures for workers on every broker of ours. `Broker` and the tests name the differences.

Results, notes and gates of tasks are in one Redis, whatever the broker.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery

from celery_delayq.testing.fixtures import RedisUnderTest
from tests.conftest import LOSSES, POOL_ORDER
from tests.integration.conftest import (
    _warm_workers,
    app,
    delayq,
    fork_server,
    leases,
    make_app,
    module_app,
    redis,
)
from tests.support.brokers import Broker, OnCluster, OnRabbitMQ, OnRedis
from tests.support.scene import AppScene, StartWorker

if TYPE_CHECKING:
    from tests.apps.retry_tasks import RetryScene

__all__ = ["_warm_workers", "app", "delayq", "fork_server", "leases", "make_app", "redis"]


HERE = "tests/contract/workers/"
#: Tests that run all of their cases on the cluster. Other tests run one case there: a broker does
#: not see which pool and which acknowledgement a worker uses.
ALL_CASES = (
    "test_delayed_tasks_of_all_kinds",
    "test_a_delayed_task_that_was_revoked",
    "test_each_task_comes_to_its_end",
)


#: Kills and redeliveries, though no word of `LOSSES` is in the name.
ALSO_LOSSES = ("is_delivered_again", "took_too_long")
#: What a worker does with a task, without a call of the broker.
IN_WORKER = ("test_retries.py", "test_values.py")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out cases that test nothing new on a broker: the time of all tests is limited.

    On the cluster all but one of a test, for good. On RabbitMQ all but one, and on the cluster what
    is `IN_WORKER`, run each night only, unless a process is killed or something may be lost.
    """
    cases: dict[tuple[str, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        name = item.nodeid.partition("[")[0]
        if name.startswith(HERE) and not name.endswith(ALL_CASES):
            cases[name, params_of(item).get("broker", "")].append(item)
    left_out: set[pytest.Item] = set()
    for (name, broker), of_test in cases.items():
        further = {*of_test} - {min(of_test, key=place_of_pool)}
        if broker == "cluster":
            left_out |= further
        if LOSSES.search(name) or any(part in name for part in ALSO_LOSSES):
            continue
        if broker == "cluster" and Path(name.partition("::")[0]).name in IN_WORKER:
            further = {*of_test}
        if broker in ("cluster", "rabbitmq"):
            for item in further:
                item.add_marker(pytest.mark.nightly)
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=[*left_out])


def params_of(item: pytest.Item) -> dict[str, Any]:
    """Return the values that a test was parametrized with."""
    return item.callspec.params if hasattr(item, "callspec") else {}


def place_of_pool(item: pytest.Item) -> int:
    """Return the place of a test in the order of pools."""
    pool = params_of(item).get("pool")
    return POOL_ORDER.index(pool) if pool else 0


#: Stock Celery does not support Redis Cluster.
not_a_cluster = pytest.mark.parametrize("broker", ["redis", "rabbitmq"], indirect=True)
#: RabbitMQ has neither unique keys nor limits.
not_rabbitmq = pytest.mark.parametrize("broker", ["redis", "cluster"], indirect=True)


@pytest.fixture(params=["redis", "cluster", "rabbitmq"])
def broker(request: pytest.FixtureRequest, delayq_redis: RedisUnderTest) -> Broker:
    """An empty broker."""
    if request.param == "redis":
        return OnRedis(delayq_redis.server.url_for("delayq+redis"))
    if request.param == "cluster":
        request.getfixturevalue("delayq_cluster")
        return OnCluster(request.getfixturevalue("cluster_server"))
    url = request.getfixturevalue("delayq_rabbitmq")
    return OnRabbitMQ(request.getfixturevalue("delayq_rabbitmq_server"), url)


@pytest.fixture
def delayq_broker_url(broker: Broker) -> str:
    return broker.url


@pytest.fixture
def scene(
    broker: Broker, app: Celery, delayq_redis: RedisUnderTest, delayq_worker: StartWorker
) -> RetryScene:
    """Tasks with retries, and their workers."""
    from tests.apps.retry_tasks import RetryScene, tasks_of

    return broker.show(RetryScene(delayq_redis, tasks_of(app), delayq_worker))


class DelayedScene(AppScene):
    """Starts workers of ``tests.apps.delayq_tasks``, and reads their runs."""

    module, pool, prefetch = "delayq_tasks", "solo", 4


@pytest.fixture
def tasks(broker: Broker, delayq_redis: RedisUnderTest) -> Iterator[Any]:
    """The module of tasks, whose app uses the broker of this test."""
    from tests.apps import delayq_tasks

    with module_app(delayq_tasks.app, delayq_redis, broker.url):
        yield delayq_tasks


@pytest.fixture
def delayed_scene(
    broker: Broker, tasks: Any, delayq_redis: RedisUnderTest, delayq_worker: StartWorker
) -> DelayedScene:
    """The workers of the tasks."""
    return broker.show(DelayedScene(delayq_redis, tasks.app, delayq_worker))
