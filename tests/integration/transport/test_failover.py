"""A master is killed under load, its replica takes over: workers follow, tasks are not lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from kombu.exceptions import OperationalError
from redis import Redis

from celery_delayq import DelayQ, Outcome
from celery_delayq.admin.repair import check
from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.errors import NotReplicated
from celery_delayq.model.limits.of_app import AppLimits
from celery_delayq.settings import Settings
from celery_delayq.store.keys import Keys, Layout
from celery_delayq.store.store import Store
from celery_delayq.store.stores import Stores
from celery_delayq.testing import WorkerProcess, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.apps.ending_tasks import Desk, app
from tests.apps.settings import limits_of
from tests.support import SHORT_LEASE, TIMEOUT
from tests.support.faults.checker import Run
from tests.support.permits import watching
from tests.support.scene import StartWorker
from tests.support.sentinel import MASTER_NAME, Sentinel, replicated

pytestmark = pytest.mark.each_server

Servers = tuple[EmbeddedRedis, EmbeddedRedis]

PASSWORD = "s3cret"


@pytest.fixture
def servers(
    delayq_redis_factory: Callable[..., EmbeddedRedis],
) -> tuple[EmbeddedRedis, EmbeddedRedis]:
    """A master and its replica."""
    return replicated(delayq_redis_factory, PASSWORD)


@pytest.fixture
def sentinel(servers: Servers, tmp_path: Path) -> Iterator[Sentinel]:
    with Sentinel(servers[0], PASSWORD, tmp_path / "sentinel") as sentinel:
        sentinel.wait_ready(replicas=1)
        yield sentinel


@pytest.fixture(
    params=[0, 1],
    ids=["does not wait for the replica", "waits for the replica"],
)
def desk(
    request: pytest.FixtureRequest,
    servers: Servers,
    sentinel: Sentinel,
    delayq_worker: StartWorker,
    delayq_redis: RedisUnderTest,
) -> Iterator[Desk]:
    options: dict[str, Any] = {
        "master_name": MASTER_NAME,
        "delayq": {"wait_replicas": request.param},
    }
    url = f"delayq+sentinel://:{PASSWORD}@127.0.0.1:{sentinel.port}/0"
    desk = Desk(delayq_worker, servers[0], delayq_redis.url, url=url, options=options)
    yield desk
    desk.close()


@pytest.mark.full
def test_a_failover_under_load(
    desk: Desk, servers: Servers, sentinel: Sentinel, record_property: Callable[[str, object], None]
) -> None:
    master, replica = servers
    waits = desk.options["delayq"].pop("wait_replicas")
    running = desk.send(2, "gate")
    workers = [
        desk.worker("prefork", lease=SHORT_LEASE),
        desk.worker("threads", lease=SHORT_LEASE, args=["--queues=celery,aside"]),
    ]
    desk.wait_started(running, 2)
    scheduled = desk.send(20, countdown=15)

    # Load, also while the replica is asked what it has and when the master dies.
    desk.options["delayq"]["wait_replicas"] = waits
    published: list[str] = []
    certain: set[str] = set()
    acknowledged: set[str] = set()
    wait_until(lambda: replica_has(replica, scheduled), what="the schedule on the replica")
    with suppress(OperationalError, NotReplicated), desk.connection() as connection:
        while True:
            published += desk.send(1, connection=connection, retry=False)
            if len(published) == 200:
                certain = set(published)
                acknowledged = desk.acknowledged_once()
                wait_replicated(master)
            elif len(published) == 220:
                master.kill()
    assert len(published) >= 220

    desk.options["delayq"].pop("wait_replicas")
    wait_failover(desk, replica, sentinel, workers)

    # Dispatchers and heartbeats are on the new master.
    desk.wait_finished(desk.send(1, queue="aside", countdown=1.5 * SHORT_LEASE))
    assert set(running) <= desk.leased_ids()
    desk.open("gate")
    certain.update(published if waits else [])
    desk.wait_finished([*running, *scheduled, *certain])
    desk.wait_empty()

    # Runs twice only what was acknowledged when the replica could not be told any more.
    twice = desk.twice()
    record_property("twice", len(twice))
    record_property("lost", len(set(published) - desk.ledger.finished()))
    print(f"{len(twice)} ran twice, {len(set(published) - desk.ledger.finished())} were lost")
    assert acknowledged
    assert not acknowledged.intersection(twice)
    assert not set(twice).intersection(running)


@pytest.mark.full
@pytest.mark.parametrize("desk", [0], indirect=True)
def test_a_replica_that_lags_undoes_what_it_was_not_told_and_nothing_else(
    desk: Desk, servers: Servers, sentinel: Sentinel
) -> None:
    master, replica = servers
    workers = [desk.worker("prefork", lease=SHORT_LEASE), desk.worker("threads", lease=SHORT_LEASE)]
    desk.wait_finished(desk.send(20))
    kept, cancelled, moved = (desk.send(5, countdown=3600) for _ in range(3))
    again = desk.send(4, acks="mixed", countdown=3600)
    everything = [*kept, *cancelled, *moved, *again]
    wait_until(lambda: replica_has(replica, everything), what="the schedule on the replica")

    with replica.client() as client:
        cut_off(client)
    lost = desk.send(5, countdown=3600)
    with controlling(desk) as delayq:
        assert {delayq.cancel(id) for id in cancelled} == {Outcome.DONE}
        assert {delayq.reschedule(id, countdown=7200) for id in moved} == {Outcome.DONE}
        assert {delayq.run_now(id) for id in again} == {Outcome.DONE}
    desk.wait_finished(again)
    wait_until(lambda: not desk.leased_ids(), TIMEOUT, "the acks")
    master.kill()
    wait_failover(desk, replica, sentinel, workers)

    with controlling(desk) as delayq:
        assert {delayq.run_now(id) for id in everything} == {Outcome.DONE}
    desk.wait_finished([*everything, *desk.send(5, countdown=1)])
    desk.wait_empty()

    assert not desk.ledger.finished() & set(lost)
    assert desk.twice() == dict.fromkeys(again, 2)
    store = Store(desk.redis, Keys(), Layout())
    reports = [*check(Stores.single(store), Settings(lease=SHORT_LEASE))]
    assert reports[-1].findings == []


@pytest.mark.full
@pytest.mark.parametrize("desk", [0], indirect=True)
def test_after_a_failover_to_a_replica_that_lags_a_limit_holds_for_what_starts_then(
    desk: Desk, servers: Servers, sentinel: Sentinel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replica has the permits of its leases. What started after it was cut off runs beside."""
    most, limits = 2, {"ending.late": {"name": "late", "concurrency": 2}}
    monkeypatch.setattr(app, "_delayq_limits", AppLimits(limits_of(limits)))
    master, replica = servers
    worker = desk.worker("prefork", lease=SHORT_LEASE, concurrency=8, limits=limits)
    first = desk.send(most, "first")
    desk.wait_started(first, most)
    second = desk.send(3 * most, "second")
    wait_until(lambda: replica_has(replica, second), what="the held tasks on the replica")
    with replica.client() as client:
        wait_until(lambda: client.zcard("delayq:permits") == most, what="the permits")
        cut_off(client)

    # These end, and others start, and the replica does not know it.
    desk.open("first")
    unknown = desk.wait_started(second, most)
    assert not set(first) & desk.leased_ids()
    master.kill()
    with watching(replica, "late") as counts:
        wait_failover(desk, replica, sentinel, [worker])
        desk.open("second")
        desk.wait_finished([*first, *second])
        desk.wait_empty()

    assert desk.twice() == dict.fromkeys([*first, *unknown], 2)
    assert max(each.leased for each in counts) == most
    assert {each for each in counts if each.leased != each.permits} == set()
    assert desk.redis.exists("delayq:permits", "{celery}:held", "{celery}:lanes") == 0
    assert most_at_once(desk.ledger.read()[0]) <= 2 * most


def most_at_once(runs: Iterable[Run]) -> int:
    """Return how many runs there were at one moment, at most."""
    steps = [(run.start_us, 1) for run in runs]
    steps += [(run.end_us, -1) for run in runs if run.end_us is not None]
    return max(accumulate(step for _, step in sorted(steps)))


@contextmanager
def controlling(desk: Desk) -> Iterator[DelayQ]:
    """Yield the object of another app, connected to the master of this moment."""
    with Celery("lag", broker=desk.url, set_as_current=False) as app:
        app.conf.broker_transport_options = {"master_name": MASTER_NAME}
        with closing(DelayQ.of(app)) as delayq:
            yield delayq


def cut_off(replica: Redis) -> None:
    """Let a replica receive nothing any more."""
    replica.config_set("masterauth", "wrong")
    replica.client_kill_filter(_type="master")


def replica_has(replica: EmbeddedRedis, ids: list[str]) -> bool:
    """Return whether a replica has these in its schedule."""
    with replica.client() as client:
        return all(client.zscore("{celery}:due", id) for id in ids)


def wait_replicated(master: EmbeddedRedis) -> None:
    """Wait until the replica has all that the master has at the time of the call."""
    with master.client() as client:
        client.incr("mark")  # WAIT is about the writes of its own connection
        assert client.wait(1, 10_000) == 1


def wait_failover(
    desk: Desk, replica: EmbeddedRedis, sentinel: Sentinel, workers: list[WorkerProcess]
) -> None:
    """Wait until the replica is the master, and the workers have followed."""
    wait_until(lambda: sentinel.master_port() == replica.port, TIMEOUT, "the failover")
    desk.redis.close()
    desk.redis = replica.client()
    for worker in workers:
        desk.wait_connected(worker, 2)
