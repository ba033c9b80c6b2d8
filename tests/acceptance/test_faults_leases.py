"""Long tasks, far ETAs and tasks during an outage of Redis run once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from celery_delayq.testing import POOLS, wait_until
from tests.support.faults.killer import Killer
from tests.support.faults.scale import scaled
from tests.support.faults.stage import MakeStage, Passes, Stage
from tests.support.proxy import Proxy
from tests.support.stopped import stopped

Away = Callable[[Stage, Proxy], AbstractContextManager[None]]
pytestmark = pytest.mark.full


def test_a_task_ten_times_as_long_as_the_lease_runs_once_in_every_pool(
    make_stage: MakeStage, passes: Passes
) -> None:
    """Tasks that sleep and tasks that compute; each pool has its own queue."""
    stage = make_stage()
    workers = [stage.start_worker(pool=pool, queues=[pool]) for pool in POOLS]
    for pool in POOLS:
        stage.producer.send("faults.work", 10 * stage.lease, queue=pool)
        if pool != "solo":
            stage.producer.send("faults.burn", 1.5 * stage.lease, queue=pool)
        stage.producer.send("faults.work", after=8 * stage.lease, queue=pool)
    for worker in workers:
        worker.wait_ready()
    wait_until(lambda: "ready" not in stage.unfinished(), what="all messages are leased")
    # This worker only takes messages that others lose.
    stage.worker(pool="threads", queues=POOLS)

    passes(stage.verdict())


def hangs(stage: Stage, _proxy: Proxy) -> AbstractContextManager[None]:
    """Stop the server; its connections stay open."""
    return stopped(stage.broker.pid)


@contextmanager
def crashed(stage: Stage, _proxy: Proxy) -> Iterator[None]:
    """Kill the server, which has its data on disk."""
    stage.broker.kill()
    try:
        yield
    finally:
        stage.broker.start()


#: Ways to lose Redis. "silent": connections stay open and pass nothing, as with a firewall.
AWAY: dict[str, Away] = {
    "stopped": hangs,
    "refused": lambda _, proxy: proxy.away(),
    "silent": lambda _, proxy: proxy.frozen(),
    "crashed": crashed,
}


@pytest.mark.parametrize("name", [*AWAY][: scaled(2, 4)])
def test_redis_away_for_twice_the_lease_gives_no_running_task_to_others(
    make_stage: MakeStage, passes: Passes, name: str
) -> None:
    """Some tasks end while Redis is away, some later. Tasks that wait in workers are not lost."""
    stage = make_stage(broker_options={"appendfsync": "always"})
    proxy = stage.proxy()
    for n in range(4):
        stage.producer.send("faults.work", 2 * stage.lease + n % 2 * 2 * stage.lease)
    stage.workers(2, through=proxy)
    wait_until(lambda: len(stage.ledger.starts()) == 4, what="all run")
    for n in range(10):
        stage.producer.send("faults.work", 0.1, after=0.4 * n)
    stage.producer.send_many(10, "faults.work", 0.1)
    killer = Killer(stage)

    with AWAY[name](stage, proxy):
        killer.let_pass(2 * stage.lease, 2 * stage.lease)

    stage.producer.send_many(5, "faults.work")
    passes(stage.verdict())
