"""The data source and the jobs on a Redis Cluster: tables of all hash tags, in few parts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("pyspark")

from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.model.scheduled import Filter
from celery_delayq.spark.reconcile import Options as ReconcileOptions
from celery_delayq.spark.reconcile import reconcile
from celery_delayq.spark.report import Options as ReportOptions
from celery_delayq.spark.report import report
from tests.integration.spark.conftest import Archive, Read, Restore, Write
from tests.integration.spark.flights import NOON, SCHEMA, expected, flights
from tests.support.cluster import QUEUES
from tests.support.dead_letters import details, message, stored
from tests.support.runs import finished

#: One on each master.
NAMES = [*QUEUES.values()][::4]

AT = int(NOON.timestamp() * 1000)


@pytest.fixture
def delayq_broker_url(delayq_cluster: str) -> str:
    return delayq_cluster


def add_runs(delayq: DelayQ, first: int, each: int = 2) -> set[str]:
    """Add runs to the history of each hash tag; return their ids."""
    ids: set[str] = set()
    for queue in NAMES:
        some = [f"{queue} {n}" for n in range(first, first + each)]
        runs = [finished(id, AT + n, queue=queue) for n, id in enumerate(some)]
        delayq.session.stores.of(queue).history.add("me", first + 1, 1000, runs)
        ids.update(some)
    return ids


def add_dead_letters(delayq: DelayQ, each: int = 3) -> set[str]:
    """Store dead letters in the queue of each hash tag; return their ids."""
    ids: set[str] = set()
    begun = delayq.session.now_ms() - 60_000
    for queue in NAMES:
        found = [
            (id, begun + n, stored(begun + n, "it failed", message(id), details()))
            for n, id in enumerate(f"{queue}-{n}" for n in range(each))
        ]
        delayq.session.stores.of(queue).dead_letters.restore(queue, found)
        ids.update(id for id, *_ in found)
    return ids


@pytest.mark.nightly
def test_tables_are_those_of_all_hash_tags(
    app: Celery, delayq: DelayQ, read: Read, write: Write
) -> None:
    add = app.tasks["tasks.add"]
    for number, queue in enumerate(NAMES):
        rows = [row for row in flights(12) if row[3] % len(NAMES) == number]
        assert write(rows, queue=queue)["new"] == 4
        add.apply_async((1, 2), queue=queue, task_id=f"ready {queue}")
        delayq.periodic.add(f"each {queue}", timedelta(hours=1), "tasks.add", (1, 2), queue=queue)
    runs, dead = add_runs(delayq, 0, 4), add_dead_letters(delayq)

    scheduled = read("scheduled", batchsize="2", partitions="4", task="mail.remind")
    assert scheduled.rdd.getNumPartitions() == 4
    mail = scheduled.collect()
    assert sorted(row.id for row in mail) == sorted(expected(*flights(12)))
    assert {row.queue for row in mail} == {*NAMES}
    assert len(read("scheduled", queue=NAMES[1], task="mail.remind").collect()) == 4
    assert {row.id for row in read("ready").collect()} == {f"ready {queue}" for queue in NAMES}
    assert read("leased").collect() == []
    assert {row.task_id for row in read("dead_letters").collect()} == dead
    assert {row.name for row in read("periodic").collect()} == {f"each {name}" for name in NAMES}
    history = read("history", batchsize="4", partitions="2")
    assert history.rdd.getNumPartitions() <= 4
    assert sorted(row.id for row in history.collect()) == sorted(runs)


@pytest.mark.nightly
def test_a_stream_goes_on_in_each_hash_tag(
    delayq: DelayQ, stream: Callable[..., list[str]]
) -> None:
    first = add_runs(delayq, 0)
    assert sorted(stream()) == sorted(first)
    assert stream() == []
    second = add_runs(delayq, 2)
    assert sorted(stream()) == sorted(second)


@pytest.mark.nightly
def test_jobs(
    spark: Any,
    app: Celery,
    delayq: DelayQ,
    delayq_broker_url: str,
    archive: Archive,
    restore: Restore,
) -> None:
    access = {"url": delayq_broker_url}
    add_runs(delayq, 0)
    dead = add_dead_letters(delayq)
    for queue in NAMES:
        for key, eta, gate, pax in flights(2):
            call = {"task_id": f"mail.remind:{queue} {key}", "eta": eta, "queue": queue}
            app.send_task("mail.remind", kwargs={"gate": gate, "pax": pax}, **call)

    told = archive("history", "dead_letters", "scheduled", remove=True)
    assert (told.history, told.dead_letters, told.removed, told.scheduled) == (6, 9, 9, 6)
    assert told.source.startswith("cluster 127.0.0.1:")
    assert delayq.count_dead() == 0
    add_runs(delayq, 2, 1)
    again = archive("history", "dead_letters")
    assert (again.history, again.dead_letters, again.lost) == (3, 0, "")

    delayq.cancel_all(Filter(), everything=True)
    assert delayq.count() == 0
    assert restore().outcomes == {"scheduled": 6}
    assert restore(table="dead_letters").outcomes == {"restored": 9}
    assert {each.task_id for each in delayq.dead_letters()} == dead
    assert {entry.queue for entry in delayq.entries()} == {*NAMES}

    rows = spark.createDataFrame(flights(4), SCHEMA)
    given: dict[str, Any] = {"task": "mail.remind", "key": "flight", "eta": "remind_at"}
    options = ReconcileOptions(access=access, queue=NAMES[2], orphans="cancel", **given)
    summary = reconcile(spark, rows, options)
    assert (summary.new, summary.orphans, summary.cancelled) == (4, 6, 6)
    assert {(entry.id, entry.queue) for entry in delayq.entries()} == {
        (id, NAMES[2]) for id in expected(*flights(4))
    }

    told_runs = report(spark, ReportOptions(access=access, ahead=24 * 365 * 9))
    assert told_runs.total.runs == 9
    assert told_runs.ahead is not None
    assert sum(load.entries for load in told_runs.ahead.loads) == 4
