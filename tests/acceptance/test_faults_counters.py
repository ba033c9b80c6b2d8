"""The counters are equal to counts from Redis' log of writes, despite kills and lost replies."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tests.support.faults.journal import Journal
from tests.support.faults.killer import Killer
from tests.support.faults.producer import Producer
from tests.support.faults.scale import seeds
from tests.support.faults.stage import MakeStage, Stage
from tests.support.proxy import Fault
from tests.support.totals import present_by

pytestmark = pytest.mark.full

KILLS = 25

#: Calls whose replies are lost, one after the other.
LOST = (
    *("leases/acquire", "leases/ack", "leases/replace", "leases/requeue", "leases/dead_letter"),
    *("schedule/add", "dispatch/promote", "schedule/push_ready"),
)
#: The log of all writes, in one file.
WHOLE_LOG = {"appendfsync": "always", "options": {"auto-aof-rewrite-percentage": 0}}


def check(stage: Stage) -> Counter[str]:
    """Compare the counters with the counts from the log; return them."""
    stage.redis.close()
    stage.broker.stop()
    journal = Journal("celery").read(stage.broker.data_dir)
    assert journal.totals.epoch
    assert present_by(journal.totals) == 0
    return journal.compare()


def send(stage: Stage, stock: Producer, killer: Killer, number: int) -> None:
    """Send a task of any kind, or bytes that are no task."""
    producer, kind = stage.producer, number % 10
    if kind < 5:
        late = killer.random.random() * 3 if kind % 2 else None
        producer.send("faults.work", 0.01, after=late)
    elif kind < 7:
        producer.send("faults.flaky", 0.3)
    elif kind == 7:
        stock.send("faults.work", after=0.5 if number % 20 == 7 else None)
    elif kind == 8:
        stage.redis.lpush("celery", json.dumps({"number": number}))
    else:
        producer.app.send_task("faults.unknown")


@pytest.mark.parametrize("seed", seeds(1, 3))
def test_killed_workers_and_lost_replies_change_no_counter(
    make_stage: MakeStage, seed: int
) -> None:
    stage = make_stage(broker_options=WHOLE_LOG)
    stock = stage.new_producer(stock=True)
    killer, proxy = Killer(stage, seed), stage.proxy()
    workers = [stage.worker(through=proxy), stage.worker(through=proxy)]
    rules = []

    with stage.producer.sending(60, lambda number: send(stage, stock, killer, number)):
        for number in range(KILLS):
            rules.append(proxy.on(LOST[number % len(LOST)], Fault.DROP_REPLY))
            killer.let_pass(0.1, 0.7)
            killer.strike(workers, [killer.power_cut, killer.kill_main])

    stage.settle()
    stage.stop_processes()
    found = check(stage)
    assert len(killer.strikes) == KILLS
    assert sum(rule.fired.is_set() for rule in rules) > KILLS // 2
    for name in ("acked", "retried", "redelivered", "promoted", "dead:unknown_task"):
        assert found[name], found


def test_redis_itself_is_killed_and_comes_back_with_its_counters(make_stage: MakeStage) -> None:
    stage = make_stage(broker_options=WHOLE_LOG)
    killer = Killer(stage)
    stage.workers(2)

    def some(number: int) -> None:
        late = number % 20 / 10 if number % 2 else None
        stage.producer.send("faults.flaky" if number % 5 == 0 else "faults.work", 0.1, after=late)

    with stage.producer.sending(60, some):
        for _ in range(5):
            killer.let_pass(0.5, 1.5)
            stage.broker.kill()
            killer.let_pass(0.0, 0.3)
            stage.broker.start()

    stage.settle()
    stage.stop_processes()
    found = check(stage)
    for name in ("acked", "retried", "promoted"):
        assert found[name], found
