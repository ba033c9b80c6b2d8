"""Faults of a Redis Cluster under load: workers and masters are killed, busy slots move."""

from __future__ import annotations

from functools import partial

import pytest

from celery_delayq.model.cluster_tags import cluster_tags, slot_of, tag_of
from celery_delayq.testing import wait_until
from tests.support import TIMEOUT
from tests.support.cluster import MASTERS
from tests.support.faults.checker import Rollback
from tests.support.faults.cluster import QUEUES, ClusterStage, shard_of
from tests.support.faults.killer import Killer
from tests.support.faults.scale import scaled, seeds
from tests.support.faults.stage import MakeStage, Passes

pytestmark = pytest.mark.full


def send_either(stage: ClusterStage, killer: Killer, number: int) -> None:
    """Send immediate and delayed tasks in turn, each kind once to each queue."""
    is_delayed = number // len(QUEUES) % 2
    stage.send(number, killer.random.random() * 4 if is_delayed else None)


@pytest.mark.parametrize("seed", seeds(1, 3))
def test_killing_workers_while_busy_slots_move_loses_nothing(
    make_stage: MakeStage, passes: Passes, seed: int
) -> None:
    stage = make_stage("cluster")
    assert isinstance(stage, ClusterStage)
    killer = Killer(stage, seed)
    workers = stage.workers(2)
    tags = cluster_tags(12)
    busy = sorted({slot_of(tag_of(queue, tags)) for queue in QUEUES})
    owners = {slot: stage.broker.master_of(slot) for slot in busy}
    moves = 0

    with stage.producer.sending(60, partial(send_either, stage, killer)):
        for number in range(scaled(6, 25)):
            killer.let_pass(0.1, 0.7)
            if number % 2 == 0:
                slot = killer.random.choice(busy)
                source = owners[slot]
                target = killer.random.choice([m for m in stage.broker.masters if m is not source])
                stage.broker.begin_move(slot, target, source)
                killer.let_pass(0.0, 0.3)
                stage.broker.finish_move(slot, target, source)
                owners[slot] = target
                moves += 1
            killer.strike(workers, [killer.power_cut, killer.kill_main])

    verdict = stage.verdict()
    verdict.notes["kills"] = str(len(killer.strikes))
    verdict.notes["moved slots"] = str(moves)
    passes(verdict)


@pytest.mark.parametrize("seed", seeds(1, 3))
def test_a_failover_of_a_shard_loses_nothing_that_a_replica_had(
    make_stage: MakeStage, passes: Passes, seed: int
) -> None:
    """Publishes wait for a replica. Acknowledgements do not, so some tasks may run again."""
    stage = make_stage("cluster")
    assert isinstance(stage, ClusterStage)
    stage.producer.app.conf.broker_transport_options = {"delayq": {"wait_replicas": 1}}
    killer = Killer(stage, seed)
    stage.workers(2)
    since_us = stage.ledger.now_us()

    with stage.producer.sending(60, partial(send_either, stage, killer)):
        for _ in range(scaled(1, 5)):
            killer.let_pass(1.0, 2.0)
            master, _ = stage.shard(killer.random.randrange(MASTERS))
            master.kill()
            stage.replace(master)
        killer.let_pass(1.0, 2.0)

    verdict = stage.verdict(rollback=Rollback(since_us, set()))
    passes(verdict)
    assert verdict.counts["lost"] == 0


@pytest.mark.parametrize("seed", seeds(1, 3))
def test_a_failover_to_a_replica_that_lags_forgets_only_what_it_was_not_told(
    make_stage: MakeStage, passes: Passes, seed: int
) -> None:
    """No call waits for the replica, which is cut off for a while before it takes over."""
    stage = make_stage("cluster")
    assert isinstance(stage, ClusterStage)
    killer = Killer(stage, seed)
    stage.workers(2)
    since_us = stage.ledger.now_us()
    promises = stage.producer.promises
    untold: list[int] = []

    def fail_over(shard: int) -> None:
        first = len(promises)

        def sent() -> list[int]:
            # One more may be under way.
            return [n for n in range(first, len(promises) + 1) if shard_of(n) == shard]

        with stage.cut_off(shard):
            wait_until(lambda: len(sent()) > 10, TIMEOUT, "there is much to forget")
            master, _ = stage.shard(shard)
            master.kill()
            untold.extend(sent())
            stage.replace(master)

    with stage.producer.sending(60, lambda n: stage.send(n, killer.random.random() * 3)):
        for _ in range(scaled(1, 5)):
            killer.let_pass(0.5, 1.0)
            fail_over(killer.random.randrange(MASTERS))
        killer.let_pass(0.5, 1.0)

    rollback = Rollback(since_us, {promises[n].key for n in untold})
    verdict = stage.verdict(rollback=rollback)
    verdict.notes["not told to a replica"] = str(len(untold))
    passes(verdict)
    assert verdict.forgotten > 0, "the replica had all of it, and the test has shown nothing"
