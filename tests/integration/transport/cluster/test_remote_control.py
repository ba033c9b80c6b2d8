"""Remote control and events after a node has gone over which they went."""

from __future__ import annotations

import pytest

from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.testing import wait_until
from tests.integration.transport.cluster.conftest import ClusterScene

pytestmark = pytest.mark.full


def is_master(server: EmbeddedRedis) -> bool:
    with server.client() as client:
        return bool(client.role()[0] == b"master")


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_workers_answer_are_seen_and_obey_after_any_master_went(
    scene: ClusterScene, gone: int
) -> None:
    """One of the three is that over which it went."""
    shard = scene.shard(8)
    worker = scene.work(8)
    lost = scene.cluster.masters[gone]
    inspect = scene.app.control.inspect(timeout=2)
    with scene.watching() as told:
        wait_until(lambda: (inspect.ping() or {}).keys() == {worker.hostname}, 30, "an answer")

        lost.kill()
        wait_until(lambda: is_master(scene.cluster.replicas[gone]), 30, "the failover")
        wait_until(scene.cluster.is_served, 30, "all nodes know")

        wait_until(lambda: (inspect.ping() or {}).keys() == {worker.hostname}, 30, "an answer")
        scene.send("plain", id="far", countdown=3600, queue=shard.queue)
        [scheduled] = inspect.scheduled()[worker.hostname]
        assert scheduled["request"]["id"] == "far"
        scene.app.control.revoke(["far"])
        scene.wait_state("far", "REVOKED")
        scene.send("plain", id="seen", queue=shard.queue)
        wait_until(lambda: ("task-succeeded", "seen") in told, 30, lambda: f"the event: {told}")
