"""Real workers on a Redis Cluster: three masters, each with a replica."""

from __future__ import annotations

import os
import signal

import pytest

from celery_delayq.model.dead_letter import DeadFilter
from celery_delayq.model.scheduled import Outcome
from celery_delayq.testing import wait_until
from tests.integration.transport.cluster.conftest import ClusterScene

pytestmark = pytest.mark.full


@pytest.mark.parametrize("pool", ["solo", "prefork", "threads", "gevent", "eventlet"])
def test_delayed_tasks_of_several_shards_run_once_they_are_due(
    scene: ClusterScene, pool: str
) -> None:
    shards = [scene.shard(number) for number in (0, 5, 11)]
    results = [
        scene.send("plain", "done", id=shard.tag, countdown=0.5, queue=shard.queue)
        for shard in shards
    ]
    assert all(any(name.endswith(":entries") for name in shard.names()) for shard in shards)

    scene.work(0, 5, 11, pool=pool)

    assert [result.get(timeout=30) for result in results] == ["done"] * 3
    for shard in shards:
        shard.wait_empty()
    assert sorted(scene.runs("id")) == sorted(shard.tag for shard in shards)


def test_retries_stay_in_their_shard_or_go_to_another_one(scene: ClusterScene) -> None:
    here, there = scene.shard(2), scene.shard(9)
    scene.work(2, 9)

    same = scene.send("plain", ["retry", {"countdown": 0.1}], "done", id="a", queue=here.queue)
    to_other = ["retry", {"countdown": 0.1, "queue": there.queue}]
    other = scene.send("plain", to_other, "done", id="b", queue=here.queue)

    assert same.get(timeout=30) == other.get(timeout=30) == "done"
    here.wait_empty()
    there.wait_empty()
    assert sorted(scene.runs("id", "retries", "queue")) == [
        ("a", 0, here.queue),
        ("a", 1, here.queue),
        ("b", 0, here.queue),
        ("b", 1, there.queue),
    ]


def test_failed_tasks_are_dead_letters_that_can_be_replayed(scene: ClusterScene) -> None:
    numbers = (1, 6, 10)
    scene.work(*numbers)
    for number in numbers:
        scene.send("plain", "ValueError", id=str(number), queue=scene.shard(number).queue)

    scene.wait_dead("1", "6", "10")
    dead = [*scene.delayq.dead_letters()]
    assert {each.queue for each in dead} == {scene.shard(number).queue for number in numbers}
    assert scene.delayq.replay(dead[0]) is Outcome.DONE
    scene.wait_runs(4)


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


def test_workers_answer_and_refuse_revoked_tasks(scene: ClusterScene) -> None:
    worker, shard = scene.work(3, 8), scene.shard(8)
    inspect = scene.app.control.inspect(timeout=5)
    assert inspect.ping() == {worker.hostname: {"ok": "pong"}}

    scene.send("plain", id="far", countdown=3600, queue=shard.queue)
    [scheduled] = inspect.scheduled()[worker.hostname]
    assert scheduled["request"]["id"] == "far"

    scene.app.control.revoke(["far", "ready"])
    scene.wait_state("far", "REVOKED")
    scene.send("plain", id="ready", countdown=0.1, queue=shard.queue)
    scene.send("plain", id="last", countdown=0.5, queue=shard.queue)
    scene.wait_state("last")
    assert scene.runs("id") == ["last"]


def test_events_of_workers_are_seen(scene: ClusterScene) -> None:
    scene.work(7)
    with scene.watching() as told:
        scene.send("plain", id="a", queue=scene.shard(7).queue)
        wait_until(lambda: ("task-succeeded", "a") in told, 20, lambda: f"the event: {told}")


def test_tasks_of_a_killed_worker_run_in_another_one(scene: ClusterScene) -> None:
    lease = {"delayq": {"lease": 2}}
    first = scene.work(0, 6, pool="prefork", conf={"broker_transport_options": lease})
    for number in (0, 6):
        scene.send("plain", "wait", id=str(number), queue=scene.shard(number).queue)
    scene.wait_runs(2)
    for pid in [first.pid, *first.child_pids()]:
        os.kill(pid, signal.SIGKILL)

    scene.work(0, 6, pool="threads", conf={"broker_transport_options": lease})

    scene.wait_runs(4)
    scene.open("0")
    scene.open("6")
    scene.wait_state("0")
    scene.wait_state("6")
