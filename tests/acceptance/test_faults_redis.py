"""``kill -9`` of Redis while tasks are sent and run: only data that Redis has lost are lost."""

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
    """Publishes tasks, and sets a probe in the broker to their number after each publish.

    The probe after a crash shows which publishes Redis remembers, if no publish follows before it
    is read. :attr:`held` prevents such a publish.
    """

    def __init__(self, stage: Stage) -> None:
        self.held = threading.Lock()
        self._stage = stage
        self._sent: list[tuple[str, int]] = []

    def send(self, number: int) -> None:
        """Send a task; every second one has an ETA within two seconds."""
        producer = self._stage.producer
        after = number % 20 / 10 if number % 2 else None
        with self.held:
            key = producer.send("faults.work", 0.01, after=after)
            if producer.promises[-1].certain:
                self._sent.append((key, self._stage.ledger.now_us()))
                with suppress(RedisError):
                    self._stage.redis.set(PROBE, len(self._sent))

    def rollback(self) -> Rollback:
        """Return the data that Redis has lost."""
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
    """Without a log, Redis starts with the data of its last snapshot."""
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
