"""``kill -9`` of workers: no task is lost, and leased tasks run again."""

from __future__ import annotations

import pytest

from celery_delayq.testing import wait_until
from tests.support import TIMEOUT
from tests.support.faults.killer import Killer
from tests.support.faults.scale import LONG, scaled, seeds
from tests.support.faults.stage import MakeStage, Passes, Stage

SECOND = 1_000_000
HANGING = {"FAULTS_HANG": "60"}
#: Brokers, and the options of their stages.
BROKERS = {"redis": {"lease": 3.0}, "rabbitmq": {}}
pytestmark = pytest.mark.full


@pytest.mark.parametrize("seed", seeds(1, 3))
@pytest.mark.parametrize(
    ("broker", "arriving"),
    [
        ("redis", "at once"),
        ("redis", "with ETA"),
        ("rabbitmq", "with ETA"),
        ("rabbitmq", "at once"),
    ][: scaled(3, 4)],
)
def test_killing_workers_under_load_loses_nothing(
    make_stage: MakeStage, passes: Passes, seed: int, arriving: str, broker: str
) -> None:
    """Either worker may be hit: as by a power cut, or only its main process."""
    stage = make_stage(broker, **BROKERS[broker])
    killer = Killer(stage, seed)
    workers = stage.workers(2)

    def send(number: int) -> None:
        late = arriving == "with ETA" and number % 2
        stage.producer.send("faults.work", 0.01, after=killer.random.random() * 4 if late else None)

    with stage.producer.sending(100, send):
        for _ in range(scaled(6, 25)):
            killer.let_pass(0.1, 0.7)
            killer.strike(workers, [killer.power_cut, killer.kill_main])

    verdict = stage.verdict()
    verdict.notes["kills"] = str(len(killer.strikes))
    passes(verdict)


@pytest.mark.parametrize("seed", seeds(1, 3))
@pytest.mark.parametrize("broker", BROKERS)
def test_killing_the_children_of_a_pool_and_stopping_workers_loses_nothing(
    make_stage: MakeStage, passes: Passes, seed: int, broker: str
) -> None:
    """A stop is shorter than a lease and has no effect. Celery misses a dead child after 10 s."""
    stage = make_stage(broker, **BROKERS[broker])
    killer = Killer(stage, seed)
    workers = stage.workers(2)
    ways = [killer.kill_child, lambda process: killer.stop(process, 1.2)]

    # Three of the four children are busy at any time.
    with stage.producer.sending(30, lambda _: stage.producer.send("faults.work", 0.1)):
        for _ in range(scaled(4, 25)):
            killer.let_pass(0.2, 0.6)
            killer.strike(workers, ways)

    passes(stage.verdict())


def test_what_a_killed_worker_had_leased_runs_again_within_its_lease(
    stage: Stage, passes: Passes
) -> None:
    """Another worker lives. In the long form, scheduled tasks are at most one second late."""
    doomed = stage.worker(concurrency=2, env=HANGING)
    keys = set(stage.producer.send_many(8, "faults.hang"))
    wait_until(lambda: len(stage.ledger.starts()) == 2, what="two of them run")
    stage.worker(concurrency=4)
    # The other worker runs at once the tasks that the first one has not leased.
    wait_until(lambda: "ready" not in stage.unfinished(), what="all has been taken")
    leased = keys - stage.ledger.finished()
    scheduled = [stage.producer.send("faults.work", after=0.5 + 0.1 * n) for n in range(40)]
    killer = Killer(stage)
    killer.let_pass(0.3, 1.0)

    # A child that lived on would finish its task.
    killer.power_cut(doomed)

    wait_until(lambda: stage.finished(leased), TIMEOUT, "what it had leased has run")
    verdict = stage.verdict()
    killed_us = stage.harms[0].since_us
    last = {run.key: run for run in sorted(stage.ledger.read()[0], key=lambda run: run.start_us)}
    back = [(last[key].start_us - killed_us) / SECOND for key in leased]
    due = {promise.key: promise.due_us for promise in stage.producer.promises}
    late = [(last[key].start_us - due[key]) / SECOND for key in scheduled]
    verdict.notes = {"back": f"{max(back):.2f} s", "late": f"{max(late):.2f} s"}
    passes(verdict)
    assert max(back) > 0, back
    if LONG:  # a soak has its own machine
        assert max(back) <= stage.lease + 2, back
        assert max(late) <= 1, late


def test_the_only_worker_is_killed_and_the_next_one_goes_on(
    make_stage: MakeStage, passes: Passes
) -> None:
    stage = make_stage()
    worker = stage.worker(env=HANGING)
    leased = stage.producer.send_many(4, "faults.hang")
    for n in range(20):
        stage.producer.send("faults.work", after=0.2 * n)
    wait_until(lambda: len(stage.ledger.starts()) >= 2, what="it is at work")

    Killer(stage).power_cut(worker)
    stage.worker()

    wait_until(lambda: stage.finished(leased), TIMEOUT, "what it had leased has run")
    passes(stage.verdict())
