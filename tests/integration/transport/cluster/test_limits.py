"""Tasks of limits on one shard, beside another shard that always has more tasks than processes."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from celery_delayq import Limit
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.support import TIMEOUT
from tests.support.cluster import QUEUES, TAGS, Cluster
from tests.support.scene import Control, StartWorker

pytestmark = pytest.mark.full

BUSY, LIMITED = QUEUES[TAGS[0]], QUEUES[TAGS[11]]
#: Fair, so that each task waits in its lane until a worker takes it.
OTHER: dict[str, Any] = {"name": "other", "concurrency": 1, "fair": True}


def _other(key: str = "") -> None:
    """Stand for any task."""


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    return shared_cluster


@pytest.fixture
def scene(
    app: Celery, cluster: Cluster, delayq_redis: RedisUnderTest, delayq_worker: StartWorker
) -> Control:
    app.task(name="other", limit=Limit(**OTHER), acks_late=True, shared=False)(_other)
    with app.connection_for_write() as connection:
        for store in connection.default_channel.stores:
            store.task_limits.announce({"other": Limit(**OTHER).definition.text})
    return Control(delayq_redis, app, delayq_worker)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_busy_shard_leaves_a_place_to_tasks_of_limits_of_another_one(
    scene: Control, pool: str
) -> None:
    number = 60
    for n in range(number):
        scene.app.send_task("work", (n,), queue=BUSY)
    sent = [scene.tasks["other"].apply_async((f"x{n}",), queue=LIMITED) for n in range(3)]

    scene.start(pool, conf={"limits": {"other": OTHER}}, prefetch=8, queues=[BUSY, LIMITED])

    assert [each.get(timeout=TIMEOUT) for each in sent] == ["x0", "x1", "x2"]
    scene.wait_runs(number + len(sent))
    assert scene.runs("key").index("x2") < number - 10
