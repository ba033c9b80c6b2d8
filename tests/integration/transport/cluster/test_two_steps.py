"""A process dies between the two steps of a retry, or of a replay, to a queue of another shard."""

from __future__ import annotations

import os
import signal
from collections import Counter
from typing import Any

import pytest

from celery_delayq.model.scheduled import Outcome
from celery_delayq.store.dead_letters import DeadLetterStore
from celery_delayq.testing import wait_until
from tests.integration.transport.cluster.conftest import ClusterScene
from tests.support import TIMEOUT
from tests.support.cluster import Cluster

pytestmark = pytest.mark.full


class Killed(BaseException):
    """Stands for the end of the process: nothing more is sent."""


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    return shared_cluster


def test_a_worker_that_dies_between_a_retry_and_its_ack_has_the_attempt_run_again(
    scene: ClusterScene,
) -> None:
    """The retry is scheduled in another shard, and the task waits before its message is acked."""
    here, there = scene.shard(2), scene.shard(9)
    conf = {"broker_transport_options": {"delayq": {"lease": 2}}}
    scene.client.set("hold:a", 1)
    retry = ["retry", {"countdown": 0.1, "queue": there.queue}]
    first = scene.work(2, conf=conf)
    scene.send("telling", retry, "done", id="a", queue=here.queue)
    wait_until(lambda: ("on_retry", "a", 0) in scene.told(), TIMEOUT, lambda: f"{scene.told()}")
    stores = scene.delayq.session.stores
    assert stores.of(there.queue).scheduled(there.queue) == 1
    assert any(":leased:" in name for name in here.names())

    os.kill(first.pid, signal.SIGKILL)
    scene.client.delete("hold:a")
    scene.work(2, 9, conf=conf)

    wait_until(lambda: scene.attempts("a").count(0) == 2, TIMEOUT, "the attempt to run again")
    scene.wait_state("a")
    here.wait_empty()
    there.wait_empty()
    attempts = Counter(scene.attempts("a"))
    assert attempts.keys() == {0, 1}
    assert max(attempts.values()) <= 2
    assert scene.delayq.dead_letters.count() == 0


def add_dead_letter(scene: ClusterScene, queue: str) -> None:
    """Send a task, which becomes a dead letter."""
    scene.send("plain", "ValueError", id="a", queue=queue)
    leases = scene.delayq.session.stores.of(queue).leases
    [(field, *_)] = leases.acquire(queue, "me", 60, "1", 1).messages
    leases.dead_letter(queue, "me", field, "a", "failed")


def test_a_dead_letter_that_is_rewritten_between_the_steps_of_its_replay_stays(
    scene: ClusterScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task is scheduled in another shard as it was read; the new message is not lost."""
    delayq, here, there = scene.delayq, scene.shard(1), scene.shard(10)
    add_dead_letter(scene, here.queue)
    delete_call = DeadLetterStore.delete_call

    def rewrite_first(*given: Any, **more: Any) -> Any:
        report = delayq.rewrite(lambda _: {"args": [["new"]]}, queue=here.queue)
        assert report.outcomes == {Outcome.DONE: 1}
        return delete_call(*given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(DeadLetterStore, "delete_call", rewrite_first)
        assert delayq.replay("a", queue=there.queue, args=[["done"]]) is Outcome.CHANGED

    stores = delayq.session.stores
    assert stores.of(there.queue).gauges.sizes(there.queue, stores.common.layout).ready == 1
    [dead_letter] = delayq.dead_letters()
    assert dead_letter.args == [["new"]]


def test_a_replay_that_dies_between_its_steps_runs_once_more_at_worst(
    scene: ClusterScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task is scheduled in another shard, and the dead letter is still there."""
    delayq, here, there = scene.delayq, scene.shard(1), scene.shard(10)
    stores = delayq.session.stores
    add_dead_letter(scene, here.queue)

    def die(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(DeadLetterStore, "delete_call", die)
        with pytest.raises(Killed):
            delayq.replay("a", queue=there.queue, args=[["done"]])
    assert stores.of(there.queue).gauges.sizes(there.queue, stores.common.layout).ready == 1
    assert delayq.dead_letters.count() == 1

    assert delayq.replay("a", queue=there.queue, args=[["done"]]) is Outcome.DONE
    assert delayq.dead_letters.count() == 0
    scene.work(10)
    scene.wait_state("a")
    there.wait_empty()
    assert 1 <= scene.runs("queue").count(there.queue) <= 2
