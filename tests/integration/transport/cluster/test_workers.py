"""Real workers on a Redis Cluster: three masters, each with a replica."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_delayq.model.cluster_tags import cluster_tags, slot_of, tag_of
from celery_delayq.testing import wait_until
from tests.support.cluster import Cluster
from tests.support.late import start_worker
from tests.support.scene import StartWorker

pytestmark = pytest.mark.full

TAGS = cluster_tags(12)
#: A queue of each tag.
QUEUES = {tag_of(f"q{number}", TAGS): f"q{number}" for number in range(200)}


def keys_of(cluster: Cluster, queue: str) -> set[str]:
    """Return the names of a queue's keys, without its hash tag."""
    tag = tag_of(queue, TAGS)
    with cluster.master_of(slot_of(tag)).client() as client:
        names = {name.decode() for name in client.scan_iter(f"{{{tag}}}:*")}
    return {name.removeprefix(f"{{{tag}}}:") for name in names}


@pytest.mark.parametrize("pool", ["solo", "prefork", "threads"])
def test_delayed_tasks_of_several_shards_run_once_they_are_due(
    app: Celery, cluster: Cluster, delayq_worker: StartWorker, delayq_broker_url: str, pool: str
) -> None:
    queues = [QUEUES[TAGS[0]], QUEUES[TAGS[5]], QUEUES[TAGS[11]]]
    results = [
        app.send_task("url.add", (2, number), countdown=0.5, queue=queue)
        for number, queue in enumerate(queues)
    ]
    assert all("due" in str(keys_of(cluster, queue)) for queue in queues)
    start_worker(delayq_worker, delayq_broker_url, {}, pool=pool, queues=queues)

    assert [result.get(timeout=30) for result in results] == [2, 3, 4]

    def are_acknowledged() -> bool:
        left = set().union(*(keys_of(cluster, queue) for queue in queues))
        return not any("leased:" in name or ":entries" in name for name in left)

    wait_until(are_acknowledged, what="no entry and no lease")
