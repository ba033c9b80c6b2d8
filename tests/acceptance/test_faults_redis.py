"""``kill -9`` of Redis while tasks are sent and run: what is lost is what Redis itself has lost."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest
from redis.exceptions import RedisError

from tests.support.faults.checker import Rollback
from tests.support.faults.killer import Killer
from tests.support.faults.scale import scaled, seeds
from tests.support.faults.stage import MakeStage, Passes, Stage

pytestmark = pytest.mark.full

PROBE = "probe"


class Publisher:
    """Publishes, and after each publish sets a probe in the broker to how many there were.

    What Redis has of the probe after a crash tells how far it remembers, as long as nothing more
    is published until it is asked: :attr:`held` sees to that.
    """

    def __init__(self, stage: Stage) -> None:
        self.held = threading.Lock()
        self._stage = stage
        self._sent: list[tuple[str, int]] = []

    def send(self, number: int) -> None:
        """Send a task; every other one has an ETA within two seconds."""
        producer = self._stage.producer
        after = number % 20 / 10 if number % 2 else None
        with self.held:
            key = producer.send("faults.work", 0.01, after=after)
            if producer.promises[-1].certain:
                self._sent.append((key, self._stage.ledger.now_us()))
                with suppress(RedisError):
                    self._stage.redis.set(PROBE, len(self._sent))

    def rollback(self) -> Rollback:
        """Return what Redis has forgotten."""
        known = int(self._stage.redis.get(PROBE) or 0)
        return Rollback(
            since_us=self._sent[known - 1][1] if known else 0,
            forgotten={key for key, _ in self._sent[known:]},
        )


@pytest.mark.parametrize("seed", seeds(1, 3))
def test_with_appendfsync_always_nothing_is_lost_and_nothing_runs_twice(
    make_stage: MakeStage, passes: Passes, seed: int
) -> None:
    stage = make_stage(broker_options={"appendfsync": "always"})
    killer = Killer(stage, seed)
    publisher = Publisher(stage)
    stage.workers(2)

    with stage.producer.sending(100, publisher.send):
        for _ in range(scaled(3, 20)):
            killer.let_pass(0.3, 1.5)
            stage.broker.kill()
            killer.let_pass(0.0, 0.5)
            stage.broker.start()
        killer.let_pass(0.5, 1.0)

    assert not publisher.rollback().forgotten
    passes(stage.verdict())


@pytest.mark.parametrize("seed", seeds(1, 5))
@pytest.mark.parametrize("persistence", ["everysec", "none"])
def test_with_less_persistence_redis_loses_no_more_than_it_forgets(
    make_stage: MakeStage, passes: Passes, persistence: str, seed: int
) -> None:
    """Without a log, Redis comes back as it was when it last wrote a snapshot."""
    log = {"everysec": {"appendfsync": "everysec"}, "none": {"appendonly": False}}
    stage = make_stage(broker_options=log[persistence])
    killer = Killer(stage, seed)
    publisher = Publisher(stage)
    stage.workers(2)

    with stage.producer.sending(100, publisher.send):
        killer.let_pass(1.0, 1.5)
        stage.redis.save()
        killer.let_pass(0.5, 2.0)
        stage.broker.kill()
        with publisher.held:
            stage.broker.start()
            rollback = publisher.rollback()
        killer.let_pass(0.5, 1.0)

    verdict = stage.verdict(rollback=rollback)
    verdict.notes["forgotten by Redis"] = str(len(rollback.forgotten))
    passes(verdict)
    if persistence == "none":
        assert verdict.forgotten > 0, "the crash came to nothing, and the test has shown nothing"
