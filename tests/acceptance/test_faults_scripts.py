"""Between any two steps: faults and kills right before and right after each script."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from celery_delayq.store.scripting import scripts
from tests.support.faults.killer import Killer
from tests.support.faults.scale import SEED, scaled, some
from tests.support.faults.stage import MakeStage, Passes
from tests.support.faults.traffic import Traffic
from tests.support.proxy import Fault

pytestmark = pytest.mark.full

#: What each process calls while tasks are sent and run; the tests see to it that none is missing.
CALLED_BY = {
    "worker": (
        "leases/ack",
        "dispatch/next_queue",
        "leases/extend",
        "dispatch/promote",
        "schedule/push_ready",
        "leases/reclaim_expired",
        "leases/dead_letter",
        "leases/requeue",
        "leases/acquire",
        "leases/signs",
        "leases/replace",
        "schedule/add",
        "periodic/claim_due",
        "repair/types",
    ),
    "dispatcher": (
        "dispatch/next_queue",
        "dispatch/promote",
        "leases/reclaim_expired",
        "periodic/claim_due",
        "repair/types",
    ),
    "producer": ("schedule/push_ready", "schedule/add"),
}
#: Called once in a while.
RARE = {
    "dispatch/next_queue",
    "leases/extend",
    "leases/reclaim_expired",
    "leases/dead_letter",
    "leases/requeue",
    "leases/replace",
    "repair/types",
}
#: Called when a lease has ended, and not before.
SLOW = {"leases/reclaim_expired"}
CALLS = [(who, name) for who in ("worker", "dispatcher") for name in CALLED_BY[who]]
ROUNDS = scaled(1, 4)

a_call = pytest.mark.parametrize(("who", "name"), CALLS, ids=[f"{w}-{n}" for w, n in CALLS])


def traffic_of(make_stage: MakeStage, who: str, seed: int) -> Traffic:
    """Put one process behind a proxy: a worker, or a dispatcher beside a worker that has none."""
    alone = who == "worker"
    stage = make_stage(lease=1.5, delayq={"dispatch": alone, "block_timeout": 0.1})
    proxy = stage.proxy()
    worker = stage.worker(pool="threads", through=proxy if alone else None)
    victim = worker if alone else stage.dispatchers(1, through=proxy)[0]
    return Traffic(stage, proxy, victim, worker, Killer(stage, seed))


def turns(name: str) -> Iterator[int]:
    """Yield which of the next calls is to be hit."""
    chosen = random.Random(f"{SEED} {name}")
    while True:
        yield 1 if name in RARE else chosen.randint(1, 3)


@pytest.mark.parametrize("who", ["worker", "dispatcher"])
def test_every_script_that_is_called_is_listed_here(
    make_stage: MakeStage, passes: Passes, who: str
) -> None:
    traffic = traffic_of(make_stage, who, SEED)
    for step in traffic.steps():
        step()
    passes(traffic.stage.verdict())

    # Once in ten seconds, and nothing of it is a task that may run: see
    # tests/lua/deadletters/test_trim.py and tests/lua/periodic/test_announce_version.py; the audit
    # reads only. And once at the start, to read only; or at the end, where it is a hint; or where a
    # look at ready lists happens to find something.
    known = set(scripts.names()) - {
        "deadletters/trim",
        "dispatch/planned_looks",
        "dispatch/resign",
        "dispatch/wake_ready",
        "periodic/announce_version",
        "scan/hash_scan",
    }
    assert set(traffic.proxy.traffic) & known == set(CALLED_BY[who])


@a_call
def test_faults_and_kills_at_a_script_lose_nothing_and_repeat_nothing_else(
    make_stage: MakeStage, passes: Passes, who: str, name: str
) -> None:
    """First a connection fails there, then the process is killed there.

    Before the request has reached Redis, and after Redis has executed it.
    """
    traffic = traffic_of(make_stage, who, SEED)
    turn = turns(name)
    before_and_after = [Fault.DROP_REQUEST, Fault.DROP_REPLY]
    others = some([Fault.RESET, Fault.STALL, Fault.DELAY], int(name not in SLOW), name)
    for _ in range(ROUNDS):
        for fault in [*before_and_after, *others]:
            traffic.hit(name, fault, next(turn))
        for moment in before_and_after:
            traffic.hit(name, moment, next(turn), kill=True)

    passes(traffic.verdict())


@pytest.mark.parametrize("name", CALLED_BY["producer"])
def test_a_fault_on_the_way_of_a_publish_loses_nothing(
    make_stage: MakeStage, passes: Passes, name: str
) -> None:
    """What has an ETA is sent again until it is there, and is there once."""
    stage = make_stage()
    stage.worker(pool="threads")
    proxy = stage.proxy()
    producer = stage.new_producer(through=proxy)
    producer.send("faults.work")
    for fault in list(Fault) * ROUNDS:
        for nth in (1, 2):
            rule = proxy.on(name, fault, nth=nth, seconds=0.1)
            for _ in range(3):
                producer.send("faults.work", after=1.0 if name == "schedule/add" else None)
            assert rule.fired.is_set()

    passes(stage.verdict())
    if name == "schedule/add":
        assert all(promise.certain for promise in producer.promises)
