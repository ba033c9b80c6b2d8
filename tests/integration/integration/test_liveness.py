"""The file by which a probe sees that a worker's loop turns, in every pool and during outages."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.embedded.ports import free_port
from celery_delayq.testing import POOLS, WorkerProcess, wait_until
from tests.integration.conftest import MakeApp
from tests.support import TIMEOUT
from tests.support.scene import StartWorker, start_worker
from tests.support.stopped import stopped

#: As in docs/operations.md and contrib/, for 4 s where those say 60.
PROBE = 'test $(($(date +%s) - $(stat -c %Y "$FILE"))) -lt 4'

StartAlive = Callable[..., WorkerProcess]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "alive"


@pytest.fixture
def start(delayq_worker: StartWorker, file: Path) -> Iterator[StartAlive]:
    """Start a worker that touches the file; it is killed, as some would not end soon."""
    workers: list[WorkerProcess] = []

    def start(pool: str = "threads", path: Path = file, **options: object) -> WorkerProcess:
        delayq = {"liveness_file": str(path)}
        worker = start_worker(delayq_worker, "liveness_tasks", pool, delayq=delayq, **options)  # type: ignore[arg-type]
        workers.append(worker)
        return worker

    yield start
    for worker in workers:
        worker.kill()


def is_alive(file: Path) -> bool:
    """Return what the probe says."""
    env = {**os.environ, "FILE": str(file)}
    return subprocess.run(["sh", "-c", PROBE], env=env, capture_output=True).returncode == 0


def stays_alive(file: Path) -> bool:
    """Return whether the probe says so again and again, after the file was made old."""
    for _ in range(3):
        os.utime(file, (0, 0))
        wait_until(lambda: file.stat().st_mtime > 0, TIMEOUT, "the file is touched")
    return is_alive(file)


@pytest.mark.parametrize("pool", POOLS)
def test_an_idle_worker_is_alive_and_one_whose_loop_hangs_is_not(
    start: StartAlive, make_app: MakeApp, file: Path, pool: str
) -> None:
    assert not is_alive(file)
    start(pool)
    assert stays_alive(file)

    app = make_app()
    app.control.broadcast("hang", arguments={"seconds": 60})

    wait_until(lambda: not is_alive(file), TIMEOUT, "the probe sees it")


@pytest.mark.parametrize("pool", ["threads", "solo", "prefork"])
def test_a_worker_in_a_long_task_is_alive(
    start: StartAlive, make_app: MakeApp, file: Path, pool: str
) -> None:
    start(pool)
    make_app().send_task("stand_still", (60,))

    assert stays_alive(file)


@pytest.mark.full
def test_a_solo_worker_in_a_task_is_alive_until_its_time_limit(
    start: StartAlive, make_app: MakeApp, file: Path
) -> None:
    worker = start("solo")
    make_app().send_task("stand_still", (60,), time_limit=12)
    worker.wait_log("received")

    assert stays_alive(file)
    wait_until(lambda: not is_alive(file), TIMEOUT, "the probe sees it")


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("outage", ["stopped", "frozen"])
def test_an_outage_of_redis_leaves_a_worker_alive(
    start: StartAlive,
    make_app: MakeApp,
    delayq_redis_factory: Callable[..., EmbeddedRedis],
    file: Path,
    pool: str,
    outage: str,
) -> None:
    server = delayq_redis_factory()
    url = server.url_for("delayq+redis")
    start(pool, broker_url=url, result_backend=None)

    with ExitStack() as outages:
        if outage == "frozen":
            outages.enter_context(stopped(server.pid))
        else:
            server.stop()
        assert stays_alive(file)


def test_a_worker_without_a_broker_is_alive(start: StartAlive, file: Path) -> None:
    start(broker_url=f"delayq+redis://127.0.0.1:{free_port()}/0", wait_ready=False)
    wait_until(file.exists, TIMEOUT, "the file")

    assert stays_alive(file)


def test_the_name_of_the_file_may_have_that_of_the_node(start: StartAlive, tmp_path: Path) -> None:
    start(path=tmp_path / "%n.alive", name="mail")

    assert is_alive(tmp_path / "mail.alive")


def test_a_deleted_file_comes_back(start: StartAlive, file: Path) -> None:
    start()
    file.unlink()

    wait_until(file.exists, TIMEOUT, "the file")


def test_a_folder_that_does_not_exist_ends_the_worker_at_its_start(
    start: StartAlive, tmp_path: Path
) -> None:
    worker = start(path=tmp_path / "nowhere" / "alive", wait_ready=False)

    assert worker.wait() != 0
    assert "The worker cannot start: liveness_file: [Errno 2] No such file" in worker.log
