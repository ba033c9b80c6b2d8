"""Connections to RabbitMQ that are cut at any frame: of a publish, a worker, a retry, a replay."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection

import pytest

from celery_delayq import DelayQ
from celery_delayq.model.dead_letter import DeadFilter
from celery_delayq.testing import wait_until
from tests.support import TIMEOUT
from tests.support.faults.checker import Harm, Rollback
from tests.support.faults.producer import BROKEN
from tests.support.faults.scale import SEED, scaled, some
from tests.support.faults.stage import MakeStage, Passes, Stage
from tests.support.proxy import Fault, Proxy

pytestmark = pytest.mark.full

ANY = b""
#: Before RabbitMQ gets a frame, before a client gets one, and in the middle of one.
FAULTS = (Fault.DROP_REQUEST, Fault.DROP_REPLY, Fault.STALL)


def cut_everywhere(proxy: Proxy, call: Callable[[int], object], step: int) -> int:
    """Repeat a call until it passes, with a cut at most *step* frames later each time.

    Returns the number of cuts.
    """
    chosen = random.Random(SEED)
    cuts = 0
    for fault in FAULTS:
        nth = 0
        while True:
            nth += chosen.randint(1, step)
            rule = proxy.on(ANY, fault, nth=nth)
            call(nth)
            proxy.forget_rules()
            if not rule.fired.is_set():
                break
            cuts += 1
    return cuts


@pytest.mark.parametrize("after", [None, 0.5], ids=["at once", "with ETA"])
def test_a_publish_whose_connection_is_cut_at_any_frame_raised_or_is_stored(
    make_stage: MakeStage, passes: Passes, after: float | None
) -> None:
    """kombu repeats calls with an ETA; other calls raise."""
    stage = make_stage("rabbitmq")
    proxy = stage.proxy()

    def publish(_: int) -> None:
        producer = stage.new_producer(proxy)
        producer.send("faults.work", after=after)
        proxy.forget_rules()
        producer.close()

    cuts = cut_everywhere(proxy, publish, scaled(3, 1))
    stage.worker(pool="threads")

    verdict = stage.verdict()
    verdict.notes["cuts"] = str(cuts)
    passes(verdict)
    assert cuts > 10


#: Where a worker's connections are cut: at a delivery, at its acknowledgement, at the publish of a
#: retry and at its confirm; and at any frame, also during a new connection.
MOMENTS: list[tuple[str | bytes, Fault, int]] = [
    ("Basic.Deliver", Fault.DROP_REPLY, 3),
    ("Basic.Deliver", Fault.STALL, 8),
    ("Basic.Ack", Fault.DROP_REQUEST, 1),
    ("Basic.Ack", Fault.DROP_REQUEST, 7),
    ("Basic.Publish", Fault.DROP_REQUEST, 2),
    ("Basic.Ack", Fault.DROP_REPLY, 1),
    ("Basic.Ack", Fault.DROP_REPLY, 3),
    *((ANY, fault, nth) for fault in FAULTS for nth in range(1, 80, 6)),
]


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_worker_whose_connections_are_cut_at_any_frame_loses_nothing(
    make_stage: MakeStage, passes: Passes, pool: str
) -> None:
    """RabbitMQ delivers its tasks again. A confirmed retry may also be sent again."""
    stage = make_stage("rabbitmq")
    proxy = stage.proxy()
    worker = stage.worker(through=proxy, pool=pool)
    send = stage.producer.send
    moments = some(MOMENTS[:7], 4, "worker") + some(MOMENTS[7:], 3, "anywhere")
    for what, fault, nth in moments:
        since_us = stage.ledger.now_us()
        rule = proxy.on(what, fault, nth=nth)
        for n in range(8):
            send("faults.work", 0.02)
            send("faults.work", 0.02, after=0.1 * n)
            send("faults.flaky", 0.2)
        wait_until(rule.fired.is_set, TIMEOUT, f"{fault.name} at {what!r}")
        wait_until(stage.finished, TIMEOUT, f"all runs after {fault.name} at {what!r}")
        stage.harms.append(Harm(worker.pid, since_us, stage.ledger.now_us(), fatal=False))

    verdict = stage.verdict()
    verdict.notes["cuts"] = str(len(moments))
    passes(verdict)


def wait_started(stage: Stage, keys: Collection[str]) -> None:
    """Wait until all these tasks have started."""
    wait_until(lambda: stage.ledger.starts().keys() >= set(keys), TIMEOUT, "they have started")


def test_a_replay_whose_connection_is_cut_at_any_frame_loses_no_dead_letter(
    make_stage: MakeStage, passes: Passes
) -> None:
    """A replay that returned is marked. A replay that raised may have been stored."""
    stage = make_stage("rabbitmq")
    stage.worker(pool="threads")
    dead = stage.producer.send_many(80, "faults.work", after=12, queue="gone")
    delayq = DelayQ.of(stage.producer.app)
    with stage.producer.app.connection() as connection:
        connection.default_channel.queue_delete("gone")
    wait_until(lambda: len([*delayq.dead_letters()]) == len(dead), TIMEOUT, "all are dead")
    proxy = stage.proxy()
    through = DelayQ.of(stage.new_producer(proxy).app)
    left = iter(dead)

    def replay(_: int) -> None:
        id = next(left)
        try:
            through.replay(id, queue="celery")
        except BROKEN:
            return
        proxy.forget_rules()
        assert delayq.dead_letters.get(id) is None

    cuts = cut_everywhere(proxy, replay, 30)
    delayq.dead_letters.replay_all(DeadFilter(), everything=True, queue="celery")

    # A task that was replayed twice runs twice.
    verdict = stage.verdict(rollback=Rollback(0, ()))
    verdict.notes["cuts"] = str(cuts)
    passes(verdict)
    assert cuts > 10


def test_a_pool_of_threads_goes_on_after_each_cut_while_tasks_run(
    make_stage: MakeStage, passes: Passes
) -> None:
    """Celery then has a smaller prefetch count, which grows with each task that ends."""
    stage = make_stage("rabbitmq")
    proxy = stage.proxy()
    worker = stage.worker(through=proxy, pool="threads", concurrency=8)
    for _ in range(scaled(3, 20)):
        since_us = stage.ledger.now_us()
        running = stage.producer.send_many(6, "faults.work", 1.0)
        stage.producer.send_many(100, "faults.work", 0.005)
        wait_started(stage, running)
        proxy.cut_all()
        wait_until(stage.finished, TIMEOUT, "all have run")
        stage.harms.append(Harm(worker.pid, since_us, stage.ledger.now_us(), fatal=False))

    passes(stage.verdict())
