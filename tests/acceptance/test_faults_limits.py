"""Limits through faults: never more messages leased or handed out than they allow, none lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count, takewhile
from typing import Any

import pytest

from celery_delayq.testing import wait_until
from tests.apps.settings import limits_of
from tests.support import TIMEOUT
from tests.support.faults.checker import most_at_once
from tests.support.faults.killer import Killer
from tests.support.faults.scale import scaled, seeds
from tests.support.faults.stage import MakeStage, Passes, Stage
from tests.support.permits import Counts, most_above, watching
from tests.support.proxy import Fault

pytestmark = pytest.mark.full

CONCURRENCY = 3
LIMITS: Mapping[str, Mapping[str, Any]] = {
    "faults.work": {"name": "work", "concurrency": CONCURRENCY}
}
#: A rate that is below what the workers can do.
RATE, BURST = 50, 5
RATES: Mapping[str, Mapping[str, Any]] = {
    "faults.work": {"name": "work", "rate": RATE, "burst": BURST}
}
#: Most looks at leases and permits that would be too few to judge by.
FEW_LOOKS = 100


def faults(number: int, found: list[Counts]) -> Iterator[int]:
    """Count faults up to *number*, or beyond it on a machine that was too busy for enough looks."""
    return takewhile(lambda each: each < number or len(found) <= FEW_LOOKS, count())


def judged(stage: Stage, found: list[Counts], passes: Passes, killer: Killer) -> None:
    """Judge runs, leases and permits of a limit of concurrency."""
    verdict = stage.verdict()
    at_once = most_at_once(stage.ledger.read()[0], stage.harms, lease=stage.lease)
    verdict.notes = {
        "kills": str(len(killer.strikes)),
        "leased": str(max(each.leased for each in found)),
        "at once": str(at_once),
    }
    passes(verdict)
    assert max(each.leased for each in found) == CONCURRENCY
    assert at_once <= CONCURRENCY
    all_given_back(stage, found)


def all_given_back(stage: Stage, found: list[Counts]) -> None:
    """Check that each leased message had its permit, and that nothing of the limit is left."""
    assert len(found) > FEW_LOOKS
    assert {each for each in found if each.leased != each.permits} == set()
    assert stage.redis.zcard("delayq:permits") == 0
    assert stage.redis.exists("{celery}:held", "{celery}:lanes") == 0


@pytest.mark.parametrize("seed", seeds(1, 3))
@pytest.mark.parametrize("knows", [True, False], ids=["marked", "unmarked"])
def test_killed_and_stopped_workers_never_lease_more_than_the_limit_allows(
    make_stage: MakeStage, passes: Passes, seed: int, knows: bool
) -> None:
    """Unmarked messages come from a producer that does not know the limit."""
    stage = make_stage(limits=LIMITS)
    killer = Killer(stage, seed)
    producer = stage.new_producer(limits=limits_of(LIMITS) if knows else None)
    workers = stage.workers(2, concurrency=4)
    ways = [
        *(killer.power_cut, killer.kill_main, killer.kill_child),
        lambda process: killer.stop(process, 1.2),
    ]

    def send(number: int) -> None:
        producer.send("faults.work", 0.02, after=killer.random.random() * 4 if number % 2 else None)

    with watching(stage.broker, "work") as found:
        producer.send_many(2 * CONCURRENCY, "faults.work", 0.3)
        with producer.sending(40, send):
            for _ in faults(scaled(6, 25), found):
                killer.let_pass(0.1, 0.7)
                killer.strike(workers, ways)
        stage.settle()
    judged(stage, found, passes, killer)


@pytest.mark.parametrize("seed", seeds(1, 3))
def test_killed_and_stopped_workers_never_get_more_than_the_rate_allows(
    make_stage: MakeStage, passes: Passes, seed: int
) -> None:
    """A message that comes back and is handed out again counts again."""
    stage = make_stage(limits=RATES)
    killer = Killer(stage, seed)
    producer = stage.new_producer(limits=limits_of(RATES))
    workers = stage.workers(2, concurrency=4)
    ways = [
        *(killer.power_cut, killer.kill_main, killer.kill_child),
        lambda process: killer.stop(process, 1.2),
    ]

    with watching(stage.broker, "work") as found:
        producer.send_many(RATE, "faults.work", 0.02)
        with producer.sending(40, lambda _: producer.send("faults.work", 0.02)):
            for _ in faults(scaled(6, 25), found):
                killer.let_pass(0.1, 0.7)
                killer.strike(workers, ways)
        stage.settle()
    verdict = stage.verdict()
    above = most_above([(each.at_us / 1e6, each.handed_out) for each in found], RATE)
    verdict.notes = {
        "kills": str(len(killer.strikes)),
        "handed out": str(found[-1].handed_out),
        "above the rate": f"{above:.1f}",
    }
    passes(verdict)
    assert 1 < above <= BURST + 1e-3
    all_given_back(stage, found)


@pytest.mark.parametrize("seed", seeds(1, 3))
def test_lost_replies_never_lease_more_than_the_limit_allows(
    make_stage: MakeStage, passes: Passes, seed: int
) -> None:
    stage = make_stage(limits=LIMITS)
    killer = Killer(stage, seed)
    producer = stage.new_producer(limits=limits_of(LIMITS))
    proxies = [stage.proxy() for _ in range(2)]
    for proxy in proxies:
        stage.worker(through=proxy, concurrency=4)

    with watching(stage.broker, "work") as found:
        producer.send_many(2 * CONCURRENCY, "faults.work", 0.3)
        with producer.sending(40, lambda _: producer.send("faults.work", 0.02)):
            for _ in faults(scaled(20, 100), found):
                killer.let_pass(0.05, 0.2)
                fault = killer.random.choice([Fault.DROP_REPLY, Fault.DROP_REQUEST, Fault.RESET])
                killer.random.choice(proxies).on("EVALSHA", fault, nth=killer.random.randint(1, 5))
        stage.settle()
    judged(stage, found, passes, killer)


def test_a_worker_that_stays_away_returns_its_permits_with_its_lease(
    make_stage: MakeStage, passes: Passes
) -> None:
    stage = make_stage(limits=LIMITS)
    killer = Killer(stage)
    producer = stage.new_producer(limits=limits_of(LIMITS))
    held = stage.worker(concurrency=4)
    other = stage.worker(concurrency=4)

    with watching(stage.broker, "work") as found:
        keys = producer.send_many(6, "faults.work", 0.3)
        wait_until(lambda: len(stage.ledger.starts()) >= CONCURRENCY, TIMEOUT, "as many run")
        with killer.stopped(held):
            wait_until(lambda: stage.finished(keys), TIMEOUT, "the other worker runs all")
        stage.settle()
    assert other.running
    judged(stage, found, passes, killer)
