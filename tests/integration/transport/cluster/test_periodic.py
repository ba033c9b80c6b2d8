"""Periodic entries and the history on a Redis Cluster."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kombu import Exchange, Queue

from celery_delayq.errors import NotSupported
from celery_delayq.periodic.entries import Periodic, UnreadableEntry
from celery_delayq.periodic.places import entries_of
from celery_delayq.store.periodic import EntryWrite
from celery_delayq.testing import wait_until
from tests.integration.transport.cluster.conftest import ClusterScene
from tests.support import TIMEOUT

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
    wait_until(
        lambda: {each.status for each in periodic.list()} == {"ended"}, TIMEOUT, "all to end"
    )
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


def test_an_entry_that_this_process_cannot_read_is_paused(scene: ClusterScene) -> None:
    queue = scene.shard(3).queue
    scene.delayq.periodic.add("tides", 3600, "plain", (["done"],), queue=queue)
    entries = entries_of(scene.app, scene.delayq.session.stores)

    def forget_class(record: str | None) -> EntryWrite:
        state, _, text = (record or "").partition("\n")
        data = {**json.loads(text), "schedule": {"class": "harbours:tides", "args": []}}
        return EntryWrite("tides", state, f"{state}\n{json.dumps(data)}")

    entries.edit("tides", forget_class)

    paused = scene.delayq.periodic.pause("tides")

    assert isinstance(paused, UnreadableEntry)
    assert [each.paused for each in scene.delayq.periodic.unreadable()] == [True]


def test_an_entry_of_queues_of_several_tags_is_refused(scene: ClusterScene) -> None:
    periodic, exchange = scene.delayq.periodic, Exchange("news", type="direct")
    names = sorted(scene.shard(number).queue for number in (2, 7))
    with scene.app.connection_for_write() as connection:
        for name in names:
            Queue(name, exchange, "today", channel=connection.default_channel).declare()
    route: dict[str, Any] = {"exchange": "news", "routing_key": "today"}

    with pytest.raises(NotSupported, match=f"its queues {', '.join(names)} are not all of one"):
        periodic.add("e", 60.0, "plain", **route)
    periodic.add("e", 60.0, "plain", queue=names[0])
    with pytest.raises(NotSupported, match="name one queue, or add an entry for each"):
        periodic.update("e", options=route)

    entry = periodic.get("e")
    assert isinstance(entry, Periodic)
    assert entry.definition.options == {"queue": names[0]}
    assert scene.delayq.dead_letters.count() == 0
