"""Each signal of Celery comes with the extension as on stock: sender, arguments and moment.

A worker of each kind does the same work in one run, and receivers of all signals write down what
they get. A signal that Celery adds, and that nothing here sends, fails first.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, signals
from celery.utils.dispatch.signal import Signal
from kombu import Producer
from redis import Redis

from celery_delayq.testing import FAST_START, ManagedProcess, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.conftest import MakeApp
from tests.support import TIMEOUT
from tests.support.scene import StartWorker

#: Python reads this one when it starts: such a worker is not forked, so a stock one is stock.
COLD = {"PYTHONHASHSEED": "0"}

#: Every signal that Celery has.
SIGNALS = {name for name, each in vars(signals).items() if isinstance(each, Signal)}

Line = dict[str, Any]


class Run:
    """A worker that writes signals down, and the app that gives it work."""

    def __init__(self, kind: str, app: Celery, redis: Redis, folder: Path) -> None:
        self.kind = kind
        self.app = app
        self.redis = redis
        self.file = folder / kind
        self.file.touch()

    @property
    def lines(self) -> list[Line]:
        # The worker may be writing the last line.
        return [json.loads(line) for line in self.file.read_text("utf-8").split("\n")[:-1]]

    def wait(self, signal: str, about: str | None = None, times: int = 1) -> None:
        """Wait until a signal came so many times."""

        def has_come() -> bool:
            found = [(each["signal"], each["about"]) for each in self.lines]
            return found.count((signal, about)) >= times

        wait_until(has_come, TIMEOUT, lambda: f"{signal} of {about}: {self.lines[-5:]}")

    def environment(self, **more: str) -> dict[str, str]:
        return {**COLD, "KIND": self.kind, "SIGNALS": str(self.file), **more}

    def do(self, name: str, signal: str, *args: Any, times: int = 1, **options: Any) -> None:
        """Have a task run, and wait for the last signal that it causes."""
        self.app.send_task(f"signals.{name.split()[0]}", args, task_id=name, **options)
        self.wait(signal, name, times)

    def about(self) -> dict[str, list[Line]]:
        """Return the signals of each task in their order, by process.

        A worker may receive a task, or its retry, before whoever sends it goes on.
        """
        found: dict[str, list[Line]] = {}
        for line in self.lines:
            if line["about"] is not None:
                what = BESIDE.get(line["signal"], "running")
                if what == "receiving":
                    line["state"] = None
                key = f"{what} {line['about']} in {line['process']}"
                found.setdefault(key, []).append(line)
        return found

    def lifecycle(self) -> dict[str, list[Line]]:
        """Return the signals of the worker itself in their order, by process.

        Each comes once; some come in any number.
        """
        found: dict[str, list[Line]] = {}
        for line in self.lines:
            if line["signal"] == "eventlet_pool_apply":
                del line["given"]["args"]  # what Celery traces; the body is decoded already
            if line["about"] is not None or line["signal"] in ANY_NUMBER:
                continue
            lines = found.setdefault(line["process"], [])
            if line not in lines:
                lines.append(line)
        return found


#: Signals that others than the runner of a task send.
BESIDE = {
    **dict.fromkeys(("before_task_publish", "after_task_publish", "task_sent"), "sending"),
    "task_received": "receiving",
}

#: Signals that come as often as time or processes have it.
ANY_NUMBER = {"heartbeat_sent"}


def work(run: Run, pool: str) -> None:
    """Have tasks end in each way."""
    if pool == "prefork":
        run.do("killed", "task_failure")
        run.do("limited", "task_failure")
        run.do("soft", "task_postrun")
        run.app.send_task("signals.wait", task_id="wait")
        run.wait("task_prerun", "wait")
        run.app.control.revoke("wait", terminate=True, signal="SIGKILL")
        run.wait("task_revoked", "wait")
    run.do("ok", "task_postrun", 1)
    run.do("ok delayed", "task_postrun", 1, countdown=0.3)
    run.do("ok linked", "task_postrun", 1, link=run.app.signature("signals.ok", task_id="linked"))
    run.wait("task_postrun", "linked")
    run.do("fail", "task_postrun")
    run.do("retry", "task_postrun", times=2)
    run.do("autoretry", "task_postrun", times=2)
    run.do("reject", "task_postrun")
    run.do("ignore", "task_postrun")
    run.do("send", "task_postrun", 1)
    run.wait("task_postrun", "sent by a task")
    nobody = run.app.signature("signals.ok", serializer="nobody has it", task_id="no")
    run.do("ok with a link that cannot be sent", "task_internal_error", link=nobody)
    run.do("before", "task_postrun")
    run.do("unserialisable", "task_postrun")
    run.do("unknown", "task_unknown")
    run.do("ok expired", "task_revoked", 1, expires=-10)
    run.app.control.revoke("ok revoked", reply=True, timeout=TIMEOUT, limit=1)
    run.do("ok revoked", "task_revoked", 1)
    with run.app.connection_for_write() as connection:
        Producer(connection).publish({"no": "task"}, routing_key="celery")
    wait_until(lambda: any(each["signal"] == "task_rejected" for each in run.lines), TIMEOUT)


@pytest.fixture
def runs(make_app: MakeApp, delayq_redis: RedisUnderTest, tmp_path: Path) -> list[Run]:
    stock = make_app(extension=False, broker=delayq_redis.url)
    return [
        Run("stock", stock, delayq_redis.client, tmp_path),
        Run("ours", make_app(), delayq_redis.client, tmp_path),
    ]


def do_all(run: Run, pool: str, start: StartWorker, **env: str) -> None:
    """Start a worker, give it all work, and end it."""
    worker = start(
        "tests.apps.signal_tasks:app",
        pool=pool,
        concurrency=1,
        broker_url=run.app.conf.broker_url,
        result_backend=run.app.conf.result_backend,
        name="signals",
        extra_args=FAST_START,
        env=run.environment(**env),
    )
    work(run, pool)
    run.wait("heartbeat_sent")
    worker.stop()
    run.redis.flushall()


#: Where a signal is seen, for those that are not seen in each worker.
OF_BEAT = {"beat_init", "beat_embedded_init", "setup_logging"}
OF_PROCESSES = {
    *("worker_before_create_process", "worker_process_init", "worker_process_shutdown"),
}
OF_EVENTLET = {
    *("eventlet_pool_started", "eventlet_pool_preshutdown", "eventlet_pool_postshutdown"),
    "eventlet_pool_apply",
}
#: By pool: the signals that a worker does not send on stock.
NOT_SENT = {
    "prefork": OF_BEAT | OF_EVENTLET,
    "threads": OF_BEAT | OF_EVENTLET | OF_PROCESSES,
    "solo": OF_BEAT | OF_EVENTLET | OF_PROCESSES - {"worker_process_init"},
    "gevent": OF_BEAT | OF_EVENTLET | OF_PROCESSES,
    "eventlet": OF_BEAT | OF_PROCESSES,
}
#: Tasks that a worker gets when they are due, and without their ETA. On stock it gets them at once.
HAS_ETA = 5
RECEIVED_LATER = ("receiving ok delayed in main", "receiving retry in main")


# Under another name than "pool": the short tier is to have the pool that has children.
@pytest.mark.parametrize(
    "kind",
    [pytest.param(pool, marks=[pytest.mark.full] * (pool != "prefork")) for pool in NOT_SENT],
)
def test_each_signal_of_a_worker_is_as_on_stock(
    kind: str, runs: list[Run], delayq_worker: StartWorker
) -> None:
    for run in runs:
        do_all(run, kind, delayq_worker)
    stock, ours = runs

    sent = {line["signal"] for line in stock.lines}
    assert sent == SIGNALS - NOT_SENT[kind]
    assert ours.lifecycle() == stock.lifecycle()
    expected, found = stock.about(), ours.about()
    assert found.keys() == expected.keys()
    for about in expected:
        if about in RECEIVED_LATER:
            for line in expected[about]:
                line["given"]["request"][HAS_ETA] = False
        assert found[about] == expected[about], about


def test_each_signal_of_beat_is_as_on_stock(runs: list[Run], tmp_path: Path) -> None:
    found: list[dict[str, Line]] = []
    for run in runs:
        worker = ["worker", "--beat", "--pool", "solo", "--hostname", "signals@host"]
        for arguments, signal in ((["beat"], "beat_init"), (worker, "beat_embedded_init")):
            state = ["--schedule", str(tmp_path / f"{run.kind}-{signal}")]
            command = [sys.executable, "-m", "celery", "-A", "tests.apps.signal_tasks:app"]
            urls = {
                "CELERY_BROKER_URL": run.app.conf.broker_url,
                "CELERY_RESULT_BACKEND": run.app.conf.result_backend,
            }
            env = run.environment(SETS_LOGGING_UP="1", **urls)
            with ManagedProcess([*command, *arguments, *state, "--loglevel", "INFO"], env=env):
                run.wait(signal)
        lines = [each for each in run.lines if each["signal"] in OF_BEAT]
        found.append({f"{each['signal']} in {each['process']}": each for each in lines})

    stock, ours = found
    assert {line["signal"] for line in stock.values()} == OF_BEAT
    assert ours == stock
