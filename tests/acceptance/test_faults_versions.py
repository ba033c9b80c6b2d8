"""Two versions of the package in one fleet, and an update and its way back: nothing is lost.

Nothing runs twice, or early. The older version is in :mod:`tests.support.older_version`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from celery_delayq.store.keys import Keys, Layout
from celery_delayq.store.store import Store
from celery_delayq.testing import wait_until
from tests.support import TIMEOUT
from tests.support.drift import look
from tests.support.faults.killer import Killer
from tests.support.faults.scale import scaled, seeds
from tests.support.faults.stage import APP, ROOT, Passes, Stage
from tests.support.older_version import unpack_into

pytestmark = pytest.mark.full

HANGING = {"FAULTS_HANG": "60"}


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the older version."""
    folder = unpack_into(tmp_path_factory.mktemp("older"))
    program = "import celery_delayq; print(celery_delayq.__file__)"
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True)
    assert Path(done.stdout.decode()).is_relative_to(folder)
    return folder


def send(stage: Stage, number: int) -> None:
    """Send a task: at once, with an ETA, one that is retried, or one that sends another one."""
    sends: list[Callable[[], object]] = [
        lambda: stage.producer.send("faults.work", 0.01),
        lambda: stage.producer.send("faults.work", 0.01, after=number % 5 / 2),
        lambda: stage.producer.send("faults.flaky", 0.3),
        lambda: stage.producer.send("faults.relay", 0.3),
    ]
    sends[number % len(sends)]()


def check_keys(stage: Stage) -> None:
    """Check that the keys of both versions fit together."""
    assert look(Store(stage.redis, Keys(), Layout())).findings == []


@pytest.mark.parametrize("seed", seeds(1, 3))
def test_workers_and_dispatchers_of_both_versions_are_killed(
    stage: Stage, passes: Passes, older: Path, seed: int
) -> None:
    killer = Killer(stage, seed)
    workers = [stage.worker(code=code) for code in (older, ROOT)]
    dispatchers = [one for code in (older, ROOT) for one in stage.dispatchers(1, code=code)]

    with stage.producer.sending(40, lambda number: send(stage, number)):
        for _ in range(scaled(6, 25)):
            killer.let_pass(0.2, 0.8)
            killer.strike([*workers, *dispatchers], [killer.power_cut])
        both = {worker.wait_ready().pid for worker in workers}
        wait_until(
            lambda: both <= {run.holder for run in stage.ledger.read()[0]}, TIMEOUT, "both run some"
        )

    verdict = stage.verdict()
    verdict.notes["kills"] = str(len(killer.strikes))
    passes(verdict)
    check_keys(stage)


@pytest.mark.parametrize("way", ["update", "roll back"])
@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_what_one_version_leaves_is_run_by_the_other(
    stage: Stage, passes: Passes, older: Path, way: str, end: str
) -> None:
    """Scheduled, ready and leased tasks, retries, and what tasks have sent."""
    before, after = (older, ROOT) if way == "update" else (ROOT, older)
    worker = stage.worker(code=before, concurrency=2, env=HANGING if end == "killed" else None)
    killer = Killer(stage)
    for number in range(40):
        send(stage, number)
    if end == "killed":
        stage.producer.send_many(8, "faults.hang")
    stage.producer.send_spread(20, "faults.work", 2.0, 4.0)
    wait_until(lambda: len(stage.ledger.starts()) >= 10, TIMEOUT, "it is at work")

    if end == "killed":
        killer.power_cut(worker)
    else:
        worker.term()
    stage.worker(code=after)

    passes(stage.verdict())
    check_keys(stage)


def test_an_export_of_the_older_version_is_imported_by_this_one(
    stage: Stage, passes: Passes, older: Path, tmp_path: Path
) -> None:
    """The way from a version whose keys this one cannot read."""
    file = str(tmp_path / "schedule.jsonl")
    stage.producer.send_spread(50, "faults.work", 3.0, 5.0)

    def delayq(code: Path, *arguments: str) -> None:
        command = [sys.executable, "-m", "celery", "-A", f"{APP}:app", "delayq", *arguments]
        env = {**os.environ, "CELERY_BROKER_URL": stage.broker.url_for("delayq+redis")}
        done = subprocess.run(command, cwd=code, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    delayq(older, "export", file)
    stage.redis.flushall()
    delayq(ROOT, "import", file)
    stage.worker()

    passes(stage.verdict())
