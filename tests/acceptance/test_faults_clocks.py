"""Workers whose clocks are wrong by five minutes: no task early, none lost, none twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.faults.clocks import wrong_clock
from tests.support.faults.scale import scaled
from tests.support.faults.stage import MakeStage, Passes

pytestmark = pytest.mark.full

SECOND = 1_000_000


def test_workers_with_wrong_clocks_are_as_good_as_others(
    make_stage: MakeStage, passes: Passes, tmp_path: Path
) -> None:
    """They dispatch, run tasks for three leases, retry, send, and reclaim each other's messages."""
    stage = make_stage()
    off = {"fast": 300, "slow": -300, "right": 0}
    workers = {
        name: stage.start_worker(
            env=wrong_clock(seconds, tmp_path / name) if seconds else {}, queues=["celery", name]
        )
        for name, seconds in off.items()
    }
    for worker in workers.values():
        worker.wait_ready()
    clocks = {name: stage.producer.send("faults.tell_clock", 1.0, queue=name) for name in off}
    count = scaled(20, 2000)
    for n in range(count):
        stage.producer.send("faults.work")
        stage.producer.send("faults.work", after=3 * n / count)
        stage.producer.send("faults.work", countdown=3 * n / count)
        stage.producer.send("faults.flaky", 1.0, after=n / count)
        stage.producer.send("faults.relay", 1.0, countdown=n / count)
    stage.producer.send_many(8, "faults.work", 3 * stage.lease)

    stage.settle()
    runs = stage.ledger.read()[0]
    assert {run.holder for run in runs} == {worker.pid for worker in workers.values()}
    started = {run.key: run.start_us / SECOND for run in runs}
    for name, worker in workers.items():
        told, slept = map(float, worker.wait_log(r"clock (\S+) slept (\S+)").groups())
        assert abs(told - started[clocks[name]] - off[name]) < 5, f"the clock of {name} is no test"
        assert slept > 0.9
    passes(stage.verdict())
