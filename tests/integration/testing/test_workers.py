"""`WorkerProcess` on stock Celery and Redis: every pool, and every way to end."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from celery import Celery

from celery_delayq.testing import (
    FAST_START,
    POOLS,
    ManagedProcess,
    ProcessFailed,
    WorkerProcess,
    has_ended,
    wait_until,
)
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.support import TIMEOUT
from tests.support.scene import answer
from tests.support.warm import ForkServer

APPS = Path(__file__).parents[2] / "apps"
IMPLEMENTATIONS = {
    "prefork": "prefork",
    "threads": "thread",
    "solo": "solo",
    "gevent": "gevent",
    "eventlet": "eventlet",
}
Workers = Callable[..., WorkerProcess]


@pytest.fixture
def delayq_broker_scheme() -> str:
    return "redis"


@pytest.fixture
def app(delayq_broker_url: str, delayq_redis: RedisUnderTest) -> Celery:
    return Celery(
        "client", broker=delayq_broker_url, backend=delayq_redis.url, set_as_current=False
    )


@pytest.fixture
def start(delayq_worker: Workers) -> Workers:
    def start(**options: object) -> WorkerProcess:
        return delayq_worker(
            "stock_tasks:app", **{"cwd": APPS, "extra_args": FAST_START, **options}
        )

    return start


@pytest.mark.parametrize("pool", POOLS)
def test_a_worker_of_each_pool_runs_a_task_and_ends_cleanly(
    app: Celery, start: Workers, pool: str
) -> None:
    worker = start(pool=pool)

    assert app.send_task("stock.add", (2, 3)).get(timeout=TIMEOUT) == 5
    runs_in = app.send_task("stock.pid").get(timeout=TIMEOUT)
    assert (runs_in == worker.pid) == (pool != "prefork")
    stats = answer(app, worker.hostname, "stats")
    assert IMPLEMENTATIONS[pool] in stats["pool"]["implementation"]

    assert worker.stop() == 0
    assert not worker.running


def test_only_the_given_queues_are_consumed(app: Celery, start: Workers) -> None:
    start(pool="solo", queues=["boarding", "check-in"])

    for queue in ("boarding", "check-in"):
        assert app.send_task("stock.add", (1, 1), queue=queue).get(timeout=TIMEOUT) == 2
    app.send_task("stock.add", (1, 1), queue="celery")
    with app.connection_for_write() as connection:
        assert connection.default_channel.client.llen("celery") == 1


def test_two_workers_have_names_of_their_own(app: Celery, start: Workers) -> None:
    first, second = start(pool="solo", wait_ready=False), start(pool="solo", name="second")
    first.wait_ready()

    def both_answer() -> list[dict[str, object]]:
        answers: list[dict[str, object]] = app.control.ping(timeout=5, limit=2)
        return answers if len(answers) == 2 else []

    answers = wait_until(both_answer, TIMEOUT, "two answers")

    assert {name for answer in answers for name in answer} == {first.hostname, second.hostname}
    assert second.hostname.startswith("second@")


def test_killed_children_are_replaced_by_the_worker(app: Celery, start: Workers) -> None:
    worker = start(pool="prefork")
    before = set(worker.child_pids())
    assert len(before) == 2

    assert set(worker.kill_children()) == before

    wait_until(lambda: len(set(worker.child_pids()) - before) == 2, TIMEOUT, "two new children")
    assert app.send_task("stock.add", (2, 2)).get(timeout=TIMEOUT) == 4


def test_kill_ends_worker_and_children_at_once(start: Workers) -> None:
    worker = start(pool="prefork")
    pids = [worker.pid, *worker.child_pids()]

    worker.kill()

    assert worker.returncode == -signal.SIGKILL
    wait_until(lambda: all(map(has_ended, pids)), TIMEOUT, "all processes to end")


PARENT = """\
import subprocess
child = subprocess.Popen(["sleep", "600"])
print("child", child.pid, "end", flush=True)
child.wait()
"""


def test_kill_parent_ends_the_main_process_alone() -> None:
    """Not of a worker: Linux ends prefork's children with their parent."""
    with ManagedProcess([sys.executable, "-c", PARENT]) as parent:
        child = int(parent.wait_log("child ([0-9]+) end")[1])

        parent.kill_parent()

        assert parent.returncode == -signal.SIGKILL
        assert not has_ended(child)
        parent.stop()
        wait_until(lambda: has_ended(child), TIMEOUT, "the child to end")


OWNER = """\
import time
from celery_delayq.testing import WorkerProcess
with WorkerProcess("stock_tasks:app", broker_url={url!r}, cwd={cwd!r}) as worker:
    print("pids", worker.pid, *worker.child_pids(), "end")
    time.sleep(600)
"""


def test_worker_and_children_end_when_the_python_that_started_them_is_killed(
    delayq_broker_url: str,
) -> None:
    script = OWNER.format(url=delayq_broker_url, cwd=str(APPS))
    with ManagedProcess([sys.executable, "-c", script]) as owner:
        pids = [int(pid) for pid in owner.wait_log("pids ([0-9 ]+) end")[1].split()]
        assert len(pids) == 3

        owner.kill_parent()

        wait_until(lambda: all(map(has_ended, pids)), TIMEOUT, "all processes to end")


def test_stop_lets_a_running_task_finish(app: Celery, start: Workers) -> None:
    worker = start(pool="threads")
    result = app.send_task("stock.nap", (0.5,))
    worker.wait_log("napping")

    worker.stop()

    assert result.get(timeout=TIMEOUT) == "rested"


def test_a_worker_that_does_not_end_shows_what_it_does(app: Celery, start: Workers) -> None:
    worker = start(pool="solo")
    app.send_task("stock.nap", (600,))
    worker.wait_log("napping")

    worker.term()
    with pytest.raises(ProcessFailed, match=r"(?s)still runs after 0.1 s.*in nap\n"):
        worker.wait(0.1)
    worker.kill()


def test_a_restarted_worker_is_waited_for_anew_and_keeps_its_log(
    app: Celery, start: Workers
) -> None:
    worker = start(pool="solo")
    first_pid = worker.pid

    worker.restart().wait_ready()

    assert worker.pid != first_pid
    assert worker.log.count(" ready.") == 2
    assert worker.log_since_start.count(" ready.") == 1
    assert app.send_task("stock.add", (1, 2)).get(timeout=TIMEOUT) == 3


def test_a_worker_that_cannot_start_is_an_error_with_its_output(start: Workers) -> None:
    with pytest.raises(ProcessFailed, match=r"ended with code 2(.|\n)*no-such-option"):
        start(extra_args=["--no-such-option"])


def test_what_never_appears_in_the_log_is_an_error_with_the_log(start: Workers) -> None:
    worker = start(pool="solo")

    with pytest.raises(ProcessFailed, match=r"'landed' in the log(.|\n)*ready"):
        worker.wait_log("landed", timeout=0.1)


def test_variables_reach_the_worker(start: Workers) -> None:
    worker = start(pool="solo", env={"CELERY_LOADER": "absent.loader"}, wait_ready=False)

    with pytest.raises(ProcessFailed, match="absent"):
        worker.wait_ready()


def test_a_pool_that_is_not_supported_is_refused() -> None:
    with pytest.raises(ValueError, match="'processes' is unknown; expected one of prefork"):
        WorkerProcess("stock_tasks:app", pool="processes")


def test_a_log_level_that_hides_readiness_is_refused() -> None:
    with pytest.raises(ValueError, match="'WARNING' hides the line"):
        WorkerProcess("stock_tasks:app", loglevel="WARNING")


def test_stopping_an_ended_process_does_not_kill_another_that_was_given_its_id() -> None:
    ended = ManagedProcess([sys.executable, "-c", ""]).start()
    ended.wait()
    with ManagedProcess(["sleep", "600"]) as other:
        # As when the system counts process ids from 1 again.
        ended._popen().pid = other.pid

        ended.stop()
        ended.kill()

        assert other.running


def test_children_of_an_ended_process_are_killed_when_it_is_stopped() -> None:
    script = "import subprocess, sys; print(subprocess.Popen(['sleep', '600']).pid, flush=True)"
    with ManagedProcess([sys.executable, "-c", script]) as parent:
        child = int(parent.wait_log(r"^\d+$")[0])
        parent.wait()
        assert not has_ended(child)

        parent.stop()

        wait_until(lambda: has_ended(child), what="the child ends")


def test_a_worker_imports_what_the_tests_import(
    delayq_worker: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with pytest's setting ``pythonpath``, which changes ``sys.path`` of the tests alone."""
    (tmp_path / "shop_of_a_test.py").write_text(
        "from celery import Celery\napp = Celery('shop')\n", "utf-8"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    delayq_worker("shop_of_a_test:app", pool="solo")

    with pytest.raises(ProcessFailed, match="No module named 'shop_of_a_test'"):
        delayq_worker("shop_of_a_test:app", pool="solo", env={"PYTHONPATH": ""})


def test_a_forked_worker_imports_what_a_cold_one_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the tests' ``PYTHONPATH`` has the folders of packages, as in those of Spark, or a
    module that Python imports first, as with a wrong clock.
    """
    (tmp_path / "late.py").write_text(
        "import sys, hypothesis\nfrom celery import Celery\napp = Celery(sys.first)\n", "utf-8"
    )
    first = tmp_path / "first"
    first.mkdir()
    (first / "sitecustomize.py").write_text("import sys\nsys.first = 'late'\n", "utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(first), *filter(None, sys.path)]))
    process = ManagedProcess(
        [sys.executable, "-m", "celery", "-A", "late", "report"], env={"PYTHONPATH": str(tmp_path)}
    )

    with closing(ForkServer()) as server, process.log_file.open("wb") as log:
        code = server.fork(process, log).wait(TIMEOUT)

    assert (code, "Error: " in process.log) == (0, False), process.log
