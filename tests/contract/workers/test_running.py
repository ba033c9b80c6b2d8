"""What workers run, and when: every way to send, every pool, and events meanwhile."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from celery import Celery, chord

from celery_delayq import DelayQ
from celery_delayq.testing import POOLS, wait_until
from tests.apps.retry_tasks import RetryScene
from tests.contract.workers.conftest import DelayedScene, not_a_cluster
from tests.integration.conftest import MakeApp, batch
from tests.support import TIMEOUT
from tests.support.brokers import Broker, OnRabbitMQ
from tests.support.kinds import MIN_RUNS_WITH_ETA, RUNS, assert_all_kinds_run, assert_not_early
from tests.support.scene import StartWorker, start_worker

UTC = dt.timezone.utc

# -- the differences between the brokers

#: The priority, of 0 to 9, whose tasks run first.
FIRST_PRIORITY = {"redis": 0, "cluster": 0, "rabbitmq": 9}
#: Celery's settings for queues with priorities.
PRIORITY_SETTINGS = {"redis": {}, "cluster": {}, "rabbitmq": {"task_queue_max_priority": 9}}
#: Whether the broker stores revoked ids, so that a worker that starts later refuses the task.
STORES_REVOKED = {"redis": True, "cluster": True, "rabbitmq": False}
#: Whether the broker makes delayed tasks ready by itself, without a process of this package.
ENDS_DELAYS_ITSELF = {"redis": False, "cluster": False, "rabbitmq": True}

# -- the keys in Redis after all tasks have run

#: Beginnings of other keys: results, kombu's bindings, the worker ids of running processes, and the
#: number of hash tags.
OTHER_KEYS = ("celery-task", "_kombu.", "chord", "delayq:worker_id:", "delayq:cluster_tags")
#: Keys of ours that stay, for all queues and for each queue.
KEPT_KEYS = ("queues", "clock", "code_versions", "lease_ends")
KEPT_QUEUE_KEYS = ("leases", "request_numbers")

pytestmark = pytest.mark.each_server


@pytest.mark.conformance
@pytest.mark.parametrize("pool", POOLS)
def test_delayed_tasks_of_all_kinds(
    delayed_scene: DelayedScene, tasks: Any, broker: Broker, pool: str
) -> None:
    delayed_scene.start(pool)
    assert_all_kinds_run(tasks)
    delayed_scene.wait_runs(RUNS)
    runs = delayed_scene.read()
    assert len(runs) == RUNS, sorted(run["task"] for run in runs)
    runs_with_eta = [run for run in runs if run["eta"]]
    assert len(runs_with_eta) >= MIN_RUNS_WITH_ETA
    for run in runs_with_eta:
        assert_not_early(run)
    assert [run["retries"] for run in runs if run["task"] == "flaky"] == [0, 1, 2]
    delayed_scene.wait_empty()
    stored_keys = {key for key in broker.stored(delayed_scene) if not key.startswith(OTHER_KEYS)}
    assert stored_keys <= {
        "log",
        *(f"delayq:{name}" for name in KEPT_KEYS),
        *(f"{{{queue}}}:{name}" for queue in broker.queues for name in KEPT_QUEUE_KEYS),
    }


def test_what_expires_before_it_is_due_does_not_run(
    delayed_scene: DelayedScene, tasks: Any
) -> None:
    delayed_scene.start()
    expired = tasks.add.apply_async((1, 1), countdown=0.5, expires=0.2)
    after = tasks.add.apply_async((2, 2), countdown=0.6)

    assert after.get(timeout=TIMEOUT) == 4

    wait_until(lambda: expired.state == "REVOKED", TIMEOUT, "the expired task is revoked")
    assert delayed_scene.runs("args") == [[2, 2]]


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_task_reads_its_eta_with_the_transport_alone(
    make_app: MakeApp, delayq_worker: StartWorker, pool: str
) -> None:
    app = make_app(extension=False)
    start_worker(delayq_worker, "stock_tasks", pool)
    eta = dt.datetime.now(UTC) + dt.timedelta(seconds=1, microseconds=1)

    delayed, immediate = app.send_task("stock.eta", eta=eta), app.send_task("stock.eta")

    assert (delayed.get(timeout=TIMEOUT), immediate.get(timeout=TIMEOUT)) == (eta.isoformat(), None)


@not_a_cluster
def test_messages_with_an_eta_of_a_stock_producer_move_to_the_schedule(
    delayed_scene: DelayedScene, broker: Broker
) -> None:
    from tests.apps.stock_tasks import app as stock

    with stock.connection_for_write(broker.stock_url) as connection:
        for n in range(50):
            stock.send_task("add", (n, 0), countdown=3600, connection=connection)
        stock.send_task("add", (0, 1), countdown=3.0, connection=connection, task_id="soon")
        past = dt.datetime(2001, 1, 1, tzinfo=UTC)
        stock.send_task("add", (0, 2), eta=past, connection=connection, task_id="past")

    worker = delayed_scene.start()

    delayed_scene.wait_runs(2)
    soon = next(run for run in delayed_scene.read() if run["id"] == "soon")
    assert_not_early(soon)
    # A worker keeps them in its memory if RabbitMQ was silent for 2 s, and the next one has them.
    was_silent = False

    def is_each_scheduled() -> bool:
        nonlocal worker, was_silent
        if "tasks with an ETA wait in this worker's memory" in worker.log:
            was_silent = True
            worker.term()
            worker.wait(TIMEOUT)
            worker = delayed_scene.start()
        waits = broker.waits(delayed_scene)
        return waits == 50 or (was_silent and waits > 50)

    wait_until(
        is_each_scheduled,
        what=lambda: f"the 50 far tasks are scheduled, of {delayed_scene.unfinished()}",
    )
    wait_until(
        lambda: not {"ready", "leased"} & delayed_scene.unfinished().keys(),
        what="no task is ready or leased",
    )


@not_a_cluster
def test_stock_workers_run_what_was_delayed(
    app: Celery, broker: Broker, delayq_worker: StartWorker
) -> None:
    if not ENDS_DELAYS_ITSELF[broker.name]:
        start_worker(delayq_worker, "stock_tasks", "solo", queues=["another"])
    start_worker(delayq_worker, "stock_tasks", "solo", broker_url=broker.stock_url)

    results = [app.send_task("stock.add", (n, 1), countdown=0.3) for n in range(5)]

    assert [result.get(timeout=TIMEOUT) for result in results] == [1, 2, 3, 4, 5]


def test_every_way_of_sending(app: Celery, delayq: DelayQ, scene: RetryScene) -> None:
    scene.start()
    task = app.tasks["plain"]
    soon = {"countdown": 0.5}
    task.apply_async(task_id="apply_async", **soon)
    task.si().set(task_id="signature", **soon).apply_async()
    app.send_task("plain", task_id="send_task", **soon)
    app.send_task("plain", task_id="at once", ignore_result=True)
    chord([task.si().set(task_id="member", **soon)])(app.tasks["together"].s())
    with batch(app) as producer:
        for n in range(3):
            task.apply_async(task_id=f"batch {n}", producer=producer, retry=False, **soon)
    items = [{"id": f"many {n}", **soon} for n in range(3)]
    assert delayq.schedule_many(items, task="plain").counts == {"scheduled": 3}

    scene.wait_runs(11)
    scene.wait_empty()

    assert sorted({run["id"] for run in scene.read()}) == [
        *("apply_async", "at once", "batch 0", "batch 1", "batch 2", "many 0", "many 1", "many 2"),
        *("member", "send_task", "signature"),
    ]
    assert scene.state("apply_async") == "SUCCESS"
    assert scene.state("at once") == "PENDING"


def test_priorities_are_kept_on_the_way(
    app: Celery, delayq: DelayQ, scene: RetryScene, broker: Broker
) -> None:
    app.conf.update(PRIORITY_SETTINGS[broker.name])
    for priority in (3, 9, 0, 6):
        options = {"queue": broker.queues[0], "priority": priority}
        scene.send("plain", id=f"{priority}", countdown=0.2, **options)
    if ENDS_DELAYS_ITSELF[broker.name]:
        wait_until(lambda: scene.unfinished() == {"ready": 4}, TIMEOUT, "all are ready")
    else:
        scene.wait_past(scene.now() + 0.3)
    scene.start(conf=PRIORITY_SETTINGS[broker.name])

    scene.wait_runs(4)

    first = FIRST_PRIORITY[broker.name]
    assert scene.runs("id") == sorted(scene.runs("id"), key=lambda id: abs(int(id) - first))


def test_a_rate_limit_holds_for_delayed_tasks(delayed_scene: DelayedScene, tasks: Any) -> None:
    delayed_scene.start("threads", conf={"task_annotations": {"add": {"rate_limit": "2/s"}}})
    for n in range(4):
        tasks.add.apply_async((n, 0), countdown=0.2)

    delayed_scene.wait_runs(4)

    # At 2 tasks a second, the fourth task starts 1.5 s after the first; without a limit, at once.
    started = sorted(delayed_scene.runs("at"))
    assert started[-1] - started[0] > 0.75
    delayed_scene.wait_empty()


@pytest.mark.parametrize("later", [False, True], ids=["running worker", "later worker"])
def test_a_delayed_task_that_was_revoked(scene: RetryScene, broker: Broker, later: bool) -> None:
    if not later:
        scene.start()
    revoked = scene.send("plain", id="revoked", countdown=4.0)
    revoked.revoke()
    if later:
        scene.start()
    after = scene.send("plain", id="after", countdown=4.5)

    after.get(timeout=TIMEOUT)

    is_run = later and not STORES_REVOKED[broker.name]
    scene.wait_state("revoked", "SUCCESS" if is_run else "REVOKED")
    scene.wait_empty()
    assert scene.runs("id") == (["revoked"] if is_run else []) + ["after"]


# -- events meanwhile


def test_one_of_two_workers_may_be_killed_and_nothing_scheduled_is_lost(
    delayed_scene: DelayedScene, tasks: Any
) -> None:
    killed_worker = delayed_scene.start()
    delayed_scene.start()
    results = [tasks.add.apply_async((n, 0), countdown=5) for n in range(100)]
    killed_worker.kill()

    assert [result.get(timeout=TIMEOUT) for result in results] == list(range(100))
    for run in delayed_scene.read():
        assert_not_early(run)


def test_a_solo_worker_that_ends_requeues_at_once_what_it_has_not_started(
    delayed_scene: DelayedScene, tasks: Any
) -> None:
    for n in range(100):
        tasks.add.delay(n, 0)
    first = delayed_scene.start()
    # More than one prefetch (4): by then the worker has leased messages that it has not started.
    delayed_scene.wait_runs(21)
    first.stop()
    assert not delayed_scene.unfinished().get("leased")

    delayed_scene.start()
    delayed_scene.wait_runs(100)
    assert sorted(delayed_scene.runs("args")) == [[n, 0] for n in range(100)]


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_a_task_whose_process_is_killed_runs_again(
    pool: str, scene: RetryScene, broker: Broker
) -> None:
    """The process is a child with prefork, the worker itself with solo."""
    scene.send("plain", "die once", id="a", countdown=0.1)
    worker = scene.start(pool, delayq=broker.soon)
    if pool == "solo":
        assert worker.wait() == -9
        scene.start(pool, delayq=broker.soon)

    scene.wait_state("a")
    scene.wait_empty()

    assert scene.runs("retries", "deliveries") == [(0, 1), (0, 2)]


@pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_broker_that_is_restarted_loses_nothing(
    pool: str, scene: RetryScene, broker: OnRabbitMQ
) -> None:
    """A delivery of RabbitMQ ends with its connection, so running tasks run again.

    A lease in Redis does not end: see ``tests/integration/transport/test_outages.py``.
    """
    worker = scene.start(pool)
    scene.send("plain", "wait", id="running")
    scene.wait_runs(1)
    # Due after RabbitMQ has stopped: a task that runs during the stop may run twice.
    scene.send("plain", id="delayed", countdown=10.0)
    scene.send("plain", "OSError", id="retried", retry_intervals=[10.0])
    scene.wait_state("retried", "RETRY")
    wait_until(lambda: scene.unfinished().get("leased") == 1, TIMEOUT, "the first attempt is done")

    broker.server.stop()
    broker.server.start()
    for _ in range(2):  # the task runs twice, and each run waits for one element
        scene.client.rpush("gate:running", "go")

    for id in ("running", "delayed"):
        scene.wait_state(id)
    # Its last retry fails too. So the task is a dead letter, and not lost.
    scene.wait_only_dead("retried")
    assert worker.running
    assert scene.attempts("running") == [0, 0]
    assert [scene.attempts(id) for id in ("delayed", "retried")] == [[0], [0, 1]]
