"""Periodic entries and the history on a Redis Cluster."""

from __future__ import annotations

import pytest

from celery_delayq.testing import wait_until
from tests.integration.transport.cluster.conftest import ClusterScene

pytestmark = pytest.mark.full


def test_entries_of_all_shards_fire_once_each(scene: ClusterScene) -> None:
    numbers = (0, 4, 8)
    periodic = scene.delayq.periodic
    for number in numbers:
        queue = scene.shard(number).queue
        periodic.add(f"e{number}", 0.5, "plain", (["done"],), queue=queue, max_runs=3)
    conf = {"broker_transport_options": {"delayq": {"history": 1000}}}
    workers = [scene.work(*numbers, pool="threads", conf=conf) for _ in range(2)]

    scene.wait_runs(9)
    wait_until(lambda: {each.status for each in periodic.list()} == {"ended"}, 20, "all to end")
    for worker in workers:
        worker.stop()
    assert len(set(scene.runs("id"))) == len(scene.runs("id")) == 9
    assert scene.delayq.stats().periodic == 3
    runs = [*scene.delayq.history()]
    assert sorted(run.id for run in runs) == sorted(scene.runs("id"))
    assert [run.offset for run in runs] == sorted(run.offset for run in runs)


def test_an_entry_follows_the_route_of_its_task(scene: ClusterScene) -> None:
    before, after = scene.shard(3), scene.shard(9)
    scene.app.conf.task_routes = {"plain": before.queue}
    scene.delayq.periodic.add("e", 0.5, "plain", (["done"],), max_runs=2)
    assert any(name.endswith("periodic") for name in before.names())

    scene.work(3, 9, conf={"task_routes": {"plain": after.queue}})

    scene.wait_runs(2)
    assert set(scene.runs("queue")) == {after.queue}
    assert scene.delayq.periodic.remove("e")
    assert scene.delayq.periodic.get("e") is None
