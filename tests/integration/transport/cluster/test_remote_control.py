"""Remote control and events after a node has gone over which they went."""

from __future__ import annotations

from functools import partial

import pytest

from celery_delayq.testing import wait_until
from tests.integration.transport.cluster.conftest import ClusterScene
from tests.support import TIMEOUT

pytestmark = pytest.mark.full


def test_workers_answer_obey_and_are_seen_after_each_master_went(scene: ClusterScene) -> None:
    """One after the other, so that each node is gone over which something went."""
    shard = scene.shard(8)
    worker = scene.work(8)
    inspect = scene.app.control.inspect(timeout=2)

    def answers() -> bool:
        return (inspect.ping() or {}).keys() == {worker.hostname}

    def is_scheduled(id: str) -> bool:
        entries = (inspect.scheduled() or {}).get(worker.hostname, [])
        return [each["request"]["id"] for each in entries] == [id]

    with scene.watching() as told:

        def has_run(id: str) -> bool:
            return ("task-succeeded", id) in told

        wait_until(answers, TIMEOUT, "an answer")
        for number, master in enumerate(scene.cluster.masters):
            master.kill()
            scene.cluster.wait_taken_over(master)

            wait_until(answers, TIMEOUT, "an answer")
            far, seen = f"far-{number}", f"seen-{number}"
            scene.send("plain", id=far, countdown=3600, queue=shard.queue)
            wait_until(partial(is_scheduled, far), TIMEOUT, "it is scheduled")
            scene.app.control.revoke([far])
            scene.wait_state(far, "REVOKED")
            scene.send("plain", id=seen, queue=shard.queue)
            wait_until(partial(has_run, seen), TIMEOUT, lambda: f"{told}")
