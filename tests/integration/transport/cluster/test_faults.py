"""Masters that are killed, slots that move, nodes that are cut off, with real workers."""

from __future__ import annotations

import math
import os
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from celery_delayq import DelayQ
from celery_delayq.dispatch import start_gate
from celery_delayq.embedded.cluster import ask
from celery_delayq.periodic.runner import PeriodicRunner
from celery_delayq.testing import ManagedProcess, wait_until
from tests.integration.transport.cluster.conftest import ClusterScene
from tests.support import TIMEOUT

pytestmark = pytest.mark.full

#: How often a publisher tries again, about each 0.2 s.
PATIENT: dict[str, Any] = {
    "retry_policy": {"max_retries": 1000, "interval_start": 0.2, "interval_max": 0.5}
}


@pytest.mark.parametrize("pool", ["solo", "prefork", "threads"])
def test_a_killed_master_holds_up_its_own_queues_only(scene: ClusterScene, pool: str) -> None:
    lost, other = scene.shard(0), scene.shard(11)
    assert lost.master is not other.master
    worker = scene.work(0, 11, pool=pool, concurrency=2)
    for number in range(20):
        scene.send("plain", id=f"before-{number}", countdown=12, queue=lost.queue, **PATIENT)
    replica = scene.cluster.replica_of(lost.master)
    due = f"{{{lost.tag}}}:{{{lost.queue}}}:due"
    with replica.client() as client:
        client.readonly()
        wait_until(lambda: client.zcard(due) == 20, TIMEOUT, "the tasks at the replica")
        client.config_set("cluster-replica-no-failover", "yes")
    lost.master.kill()
    scene.send("plain", id="other", countdown=0.1, queue=other.queue)
    scene.wait_state("other")
    worker.wait_log(f"shard of {lost.tag} is away, its queues wait")
    for service in ("dispatcher", "periodic runner"):
        worker.wait_log(f"Redis is away, {service} for the shard of {lost.tag} waits")

    with replica.client() as client:
        client.config_set("cluster-replica-no-failover", "no")
    scene.send("plain", id="after", countdown=0.1, queue=lost.queue, **PATIENT)

    scene.wait_state("after")
    for number in range(20):
        scene.wait_state(f"before-{number}")
    assert Counter(scene.runs("id")).most_common(1)[0][1] == 1
    assert f"for the shard of {other.tag} waits" not in worker.log
    assert "Connection to broker lost" not in worker.log
    with replica.client() as client:
        assert client.zcard(due) == 0


def test_a_busy_shard_moves_to_another_node(scene: ClusterScene) -> None:
    shard, target = scene.shard(1), scene.cluster.masters[2]
    worker = scene.work(1, 10, pool="threads")
    ids = [f"t{number}" for number in range(60)]
    for number, id in enumerate(ids):
        scene.send("plain", id=id, countdown=number * 0.05, queue=shard.queue, **PATIENT)
        if number == 20:
            scene.cluster.begin_move(shard.slot, target)
            scene.cluster.finish_move(shard.slot, target)

    for id in ids:
        scene.wait_state(id)
    assert Counter(scene.runs("id")) == Counter(ids)
    assert "Connection to broker lost" not in worker.log


@pytest.mark.parametrize("number", [0, 6])
def test_dispatchers_of_other_shards_do_not_wait_for_a_shard_that_is_away(
    scene: ClusterScene, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Entries in code are written, and those that are gone are removed, when all shards are there.

    Shard 0 has the version of the code too.
    """
    lost = scene.shard(number)
    for each in (lost.master, scene.cluster.replica_of(lost.master)):
        each.kill()
    monkeypatch.setattr(start_gate, "WAIT_SECONDS", math.inf)
    start_gate.close()
    runner = PeriodicRunner(scene.app)
    runner.start()
    end = time.monotonic() + TIMEOUT

    try:
        for _ in range(2):
            start_gate.wait(lambda: time.monotonic() < end)
    finally:
        runner.stop()

    assert time.monotonic() < end


@pytest.mark.parametrize("number", [0, 6])
def test_a_worker_starts_while_a_shard_is_away(scene: ClusterScene, number: int) -> None:
    """Shard 0 has the bindings too."""
    lost, other = scene.shard(number), scene.shard(11)
    for each in (lost.master, scene.cluster.replica_of(lost.master)):
        each.kill()

    worker = scene.work(number, 11, pool="threads")

    worker.wait_log(f"shard of {lost.tag} is away, its queues wait")
    scene.send("plain", id="other", countdown=0.1, queue=other.queue)
    scene.wait_state("other")
    assert "Connection to broker lost" not in worker.log
    lost.master.start()
    wait_until(scene.cluster.is_served, TIMEOUT, "the shard to be served again")
    worker.wait_log(f"shard of {lost.tag} is back")
    scene.send("plain", id="lost", countdown=0.1, queue=lost.queue, **PATIENT)
    scene.wait_state("lost")
    # The node that came back may not have its links to the others yet: it hears, and tells nobody.
    inspect = scene.app.control.inspect(timeout=2)
    wait_until(lambda: inspect.ping() == {worker.hostname: {"ok": "pong"}}, TIMEOUT, "an answer")


def test_a_storm_of_moves_is_waited_for(scene: ClusterScene) -> None:
    """The slot of a busy shard goes to and fro: MOVED, and ASK for as long as a move lasts."""
    shard, other = scene.shard(1), scene.shard(10)
    here, there = shard.master, scene.cluster.masters[2]
    worker = scene.work(1, 10, pool="threads")
    ids = [f"t{number}" for number in range(40)]
    for number, id in enumerate(ids):
        scene.send("plain", id=id, countdown=number * 0.05, queue=shard.queue, **PATIENT)

    for number in range(8):
        scene.cluster.begin_move(shard.slot, there, here)
        scene.send("plain", id=f"other-{number}", countdown=0.05, queue=other.queue)
        scene.wait_state(f"other-{number}")
        scene.cluster.finish_move(shard.slot, there, here)
        here, there = there, here

    for id in ids:
        scene.wait_state(id)
    assert Counter(scene.runs("id")).most_common(1)[0][1] == 1
    assert "Connection to broker lost" not in worker.log


def test_a_master_that_becomes_a_replica_is_left(scene: ClusterScene) -> None:
    shard = scene.shard(4)
    worker = scene.work(4)
    scene.send("plain", id="before", countdown=3, queue=shard.queue, **PATIENT)

    ask(scene.cluster.replica_of(shard.master), "FAILOVER")

    scene.cluster.wait_taken_over(shard.master)
    scene.send("plain", id="after", countdown=0.1, queue=shard.queue, **PATIENT)
    scene.wait_state("after")
    scene.wait_state("before")
    assert sorted(scene.runs("id")) == ["after", "before"]
    assert "Connection to broker lost" not in worker.log


@pytest.mark.parametrize(("replicas", "is_kept"), [(0, False), (1, True)])
def test_a_publish_to_a_master_that_hangs_is_replaced_and_wakes(
    scene: ClusterScene, replicas: int, is_kept: bool
) -> None:
    """It answers what came while it hung before it hears of its replacement: Redis' own loss."""
    options = {"delayq": {"wait_replicas": replicas}}
    scene.app.conf.broker_transport_options = options
    shard = scene.shard(4)
    scene.send("plain", id="before", countdown=3600, queue=shard.queue)  # it is connected by then

    with (
        ThreadPoolExecutor(1) as thread,
        scene.cluster.replica_of(shard.master).client() as replica,
    ):
        os.kill(shard.master.pid, signal.SIGSTOP)
        publish = thread.submit(scene.send, "plain", id="a", countdown=3600, queue=shard.queue)
        wait_until(lambda: replica.role()[0] == b"master", TIMEOUT, "the replica takes over")
        os.kill(shard.master.pid, signal.SIGCONT)
        publish.result(TIMEOUT)

    with shard.master.client() as former:
        wait_until(lambda: former.role()[0] == b"slave", TIMEOUT, "the former master follows")
    wait_until(scene.cluster.is_served, TIMEOUT, "all nodes to know the new master")
    assert (DelayQ.of(scene.app).get("a") is not None) == is_kept


def test_a_dispatcher_that_starts_while_the_first_shard_is_away_moves_tasks_of_the_others(
    scene: ClusterScene, shop: list[str]
) -> None:
    lost, other = scene.shard(0), scene.shard(11)
    scene.work(11, delayq={"dispatch": False})
    for each in (scene.cluster.replica_of(lost.master), lost.master):
        each.kill()

    with ManagedProcess([*shop, "dispatch"]) as dispatcher:
        dispatcher.wait_log("dispatching")
        scene.send("plain", countdown=0.3, queue=other.queue, **PATIENT)
        scene.wait_state("a")


def test_a_dispatcher_of_its_own_moves_tasks_of_all_shards_after_a_failover_too(
    scene: ClusterScene, shop: list[str]
) -> None:
    numbers, lost = (0, 4, 11), scene.shard(0)
    scene.work(*numbers, pool="threads", delayq={"dispatch": False})
    with ManagedProcess([*shop, "dispatch"]) as dispatcher:
        dispatcher.wait_log("dispatching")
        for number in numbers:
            scene.send("plain", id=f"a{number}", countdown=0.3, queue=scene.shard(number).queue)
        for number in numbers:
            scene.wait_state(f"a{number}")
        scene.send("plain", id="kept", countdown=12, queue=lost.queue)
        replica = scene.cluster.replica_of(lost.master)
        with replica.client() as client:
            client.readonly()
            due = f"{{{lost.tag}}}:{{{lost.queue}}}:due"
            wait_until(lambda: client.zcard(due) == 1, TIMEOUT, "the task at the replica")

        lost.master.kill()
        for number in numbers:
            queue = scene.shard(number).queue
            scene.send("plain", id=f"b{number}", countdown=0.3, queue=queue, **PATIENT)

        for id in (*(f"b{number}" for number in numbers), "kept"):
            scene.wait_state(id)
        assert Counter(scene.runs("id")).most_common(1)[0][1] == 1
        dispatcher.send_signal(signal.SIGTERM)
        assert dispatcher.wait() == 0
