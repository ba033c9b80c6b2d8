"""What a Redis Cluster adds to what workers do on every broker (``tests/contract/workers``)."""

from __future__ import annotations

import psutil
import pytest

from celery_delayq.model.dead_letter import DeadFilter
from celery_delayq.model.scheduled import Outcome
from celery_delayq.testing import wait_until
from tests.integration.transport.cluster.conftest import ClusterScene
from tests.support import TIMEOUT
from tests.support.cluster import Cluster

pytestmark = pytest.mark.full


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    return shared_cluster


def test_dead_letters_are_replayed_to_queues_of_other_shards(scene: ClusterScene) -> None:
    delayq, here, there = scene.delayq, scene.shard(1), scene.shard(10)
    worker = scene.work(1)
    for number in range(3):
        scene.send("plain", "ValueError", id=str(number), queue=here.queue)
    scene.wait_dead("0", "1", "2")
    worker.stop()
    first = delayq.dead_letters.get("0")
    assert first is not None

    assert delayq.replay("0", queue=there.queue, args=["done"]) is Outcome.DONE
    assert delayq.replay(first, queue=there.queue) is Outcome.UNKNOWN
    bulk = delayq.replay_all(DeadFilter(here.queue), queue=there.queue, args=["done"], rate=10)

    assert bulk.outcomes == {Outcome.DONE: 2}
    assert delayq.dead_letters.count() == 0
    scene.work(10)
    scene.wait_runs(6)
    assert {*scene.runs("id", "queue")} == {
        (str(number), queue) for number in range(3) for queue in (here.queue, there.queue)
    }
    here.wait_empty()


def test_a_replay_to_another_shard_leaves_a_taken_unique_key(scene: ClusterScene) -> None:
    delayq, here, there = scene.delayq, scene.shard(2), scene.shard(9)
    worker = scene.work(2)
    unique = {"unique_key": "k", "on_conflict": "error"}
    scene.send("plain", "ValueError", id="dead", queue=here.queue, **unique)
    scene.wait_dead("dead")
    worker.stop()
    scene.send("plain", id="other", countdown=60, queue=there.queue, **unique)

    assert delayq.replay("dead", queue=there.queue) is Outcome.CONFLICT

    assert delayq.dead_letters.count() == 1
    assert delayq.count() == 1


def test_the_schedule_is_listed_moved_paused_and_cancelled(scene: ClusterScene) -> None:
    delayq, numbers = scene.delayq, range(12)
    for number in numbers:
        shard = scene.shard(number)
        scene.send("plain", "done", id=str(number), countdown=60 + number, queue=shard.queue)

    assert [each.id for each in delayq.list()] == [str(number) for number in numbers]
    assert delayq.count() == delayq.stats().scheduled == 12
    assert delayq.cancel("3") is Outcome.DONE
    assert delayq.pause(queue=scene.shard(4).queue)
    assert [*delayq.paused().queues] == [scene.shard(4).queue]
    worker = scene.work(4, 5, 6)
    assert delayq.run_now("4") is delayq.run_now("5") is Outcome.DONE
    assert delayq.reschedule("6", countdown=0.1) is Outcome.DONE
    scene.wait_runs(2)
    assert sorted(scene.runs("id")) == ["5", "6"]
    assert delayq.resume(queue=scene.shard(4).queue)
    scene.wait_runs(3)
    worker.stop()
    assert delayq.count() == 8


@pytest.mark.parametrize("tags", [1, 4])
def test_a_worker_opens_some_connections_and_six_for_each_tag_that_it_consumes(
    scene: ClusterScene, tags: int
) -> None:
    """It has a periodic runner for each of the 12 tags, and a dispatcher for each of these."""
    worker = scene.work(*range(tags), pool="prefork")
    clients = [each.client() for each in scene.cluster.masters]

    def subscribed() -> int:
        return sum("P" in each["flags"] for client in clients for each in client.client_list())

    ports = {server.port for server in scene.cluster.masters}

    def opened() -> int:
        links = psutil.Process(worker.pid).net_connections()
        return sum(bool(link.raddr) and link.raddr.port in ports for link in links)

    wait_until(lambda: subscribed() == 12 + tags + 1, TIMEOUT, "all its threads listen")
    # What starts asks for the slots by connections of a moment.
    wait_until(lambda: opened() <= 32 + 6 * tags, TIMEOUT, "no more are open than it needs")
