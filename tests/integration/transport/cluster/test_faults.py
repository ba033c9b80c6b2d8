"""Masters that are killed, slots that move, nodes that are cut off, with real workers."""

from __future__ import annotations

from collections import Counter

import pytest
from celery import Celery

from celery_delayq.testing import wait_until
from tests.integration.transport.cluster.conftest import ClusterScene

pytestmark = pytest.mark.full

#: How often a publisher tries again.
PATIENT = {
    "task_publish_retry_policy": {"max_retries": 30, "interval_start": 0.2, "interval_max": 0.5},
}


@pytest.mark.parametrize("pool", ["solo", "prefork", "threads"])
def test_a_killed_master_holds_up_its_own_queues_only(
    scene: ClusterScene, app: Celery, pool: str
) -> None:
    app.conf.update(PATIENT)
    lost, other = scene.shard(0), scene.shard(11)
    assert lost.master is not other.master
    worker = scene.work(0, 11, pool=pool, concurrency=2)
    for number in range(20):
        scene.send("plain", id=f"before-{number}", countdown=2, queue=lost.queue)
    replica = scene.cluster.replica_of(lost.master)
    due = f"{{{lost.tag}}}:{{{lost.queue}}}:due"
    with replica.client() as client:
        client.readonly()
        wait_until(lambda: client.zcard(due) == 20, 10, "the tasks at the replica")
    lost.master.kill()
    scene.send("plain", id="other", countdown=0.1, queue=other.queue)
    scene.wait_state("other")

    scene.send("plain", id="after", countdown=0.1, queue=lost.queue)

    scene.wait_state("after")
    for number in range(20):
        scene.wait_state(f"before-{number}")
    assert Counter(scene.runs("id")).most_common(1)[0][1] == 1
    assert "is away, its queues wait" in worker.log
    assert "Connection to broker lost" not in worker.log
    with replica.client() as client:
        assert client.zcard(due) == 0


def test_a_busy_shard_moves_to_another_node(scene: ClusterScene, app: Celery) -> None:
    app.conf.update(PATIENT)
    shard, target = scene.shard(1), scene.cluster.masters[2]
    worker = scene.work(1, 10, pool="threads")
    ids = [f"t{number}" for number in range(60)]
    for number, id in enumerate(ids):
        scene.send("plain", id=id, countdown=number * 0.05, queue=shard.queue)
        if number == 20:
            scene.cluster.begin_move(shard.slot, target)
            scene.cluster.finish_move(shard.slot, target)

    for id in ids:
        scene.wait_state(id)
    assert Counter(scene.runs("id")) == Counter(ids)
    assert "Connection to broker lost" not in worker.log
