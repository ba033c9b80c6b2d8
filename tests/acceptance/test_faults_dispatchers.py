"""Dispatchers that are stopped and killed promote each entry once."""

from __future__ import annotations

import pytest

from celery_delayq.testing import wait_until
from tests.support import TIMEOUT
from tests.support.faults.killer import Killer
from tests.support.faults.promoted import promoted
from tests.support.faults.scale import scaled, seeds
from tests.support.faults.stage import Passes, Stage

pytestmark = pytest.mark.full


@pytest.mark.parametrize("seed", seeds(1, 1))
def test_stopped_and_killed_dispatchers_promote_each_entry_once(
    stage: Stage, passes: Passes, seed: int
) -> None:
    """There is no worker: promoted tasks stay in the ready list, where the test counts them."""
    killer = Killer(stage, seed)
    dispatchers = stage.dispatchers(scaled(5, 20))
    ways = [killer.power_cut, lambda process: killer.stop(process, killer.random.random())]
    last = scaled(10.0, 150.0)
    sent = stage.producer.send_spread(scaled(5_000, 100_000), "faults.work", 1.0, last)

    while stage.redis.exists("{celery}:due"):
        killer.let_pass(0.0, 0.2)
        killer.strike(dispatchers, ways)

    wait_until(lambda: not stage.redis.exists("{celery}:due"), TIMEOUT, "all is promoted")
    stage.stop_processes()
    passes(promoted(stage, sent, len(killer.strikes)))


def test_an_entry_that_is_ready_twice_would_be_told(stage: Stage) -> None:
    sent = [
        stage.producer.send("faults.work"),
        stage.producer.send("faults.work", after=60),
        "none",
    ]
    [message] = stage.redis.lrange("celery", 0, -1)
    stage.redis.lpush("celery", message)
    stage.redis.hset("{celery}:dead", "no message", b"1 2 3 reason\n")

    verdict = promoted(stage, sent, 0)

    assert list(verdict.twice) == [sent[0]]
    assert list(verdict.left) == [sent[1]]
    assert list(verdict.lost) == ["none"]
    assert list(verdict.dead) == ["no message"]
